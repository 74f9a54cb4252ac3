{{/* The labels by which the Service and the StatefulSet know the pod. They can never change. */}}
{{- define "meridio-nsp.selectorLabels" -}}
app.kubernetes.io/name: meridio-nsp
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: namespace
{{- end }}

{{- define "meridio-nsp.labels" -}}
{{ include "meridio-nsp.selectorLabels" . }}
app.kubernetes.io/part-of: meridio
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* A probe of the named health service. The binary is its own health probe under that name. */}}
{{- define "meridio-nsp.probe" -}}
exec:
  command:
    - /bin/grpc_health_probe
    - -addr=unix:///tmp/health.sock
    - -service={{ . }}
    - -connect-timeout=1s
    - -rpc-timeout=2s
timeoutSeconds: 4
{{- end }}
