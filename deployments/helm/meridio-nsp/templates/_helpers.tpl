{{/*
Most templates here take a process: a dict of "root" (the chart's context), "component" (namespace, trench or controller) and,
for a trench, its "trench".
*/}}

{{/* The labels of all processes of one kind. */}}
{{- define "meridio-nsp.kindLabels" -}}
app.kubernetes.io/name: meridio-nsp
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The labels by which Service and StatefulSet know the pods of a process. They can never change. */}}
{{- define "meridio-nsp.selectorLabels" -}}
{{ include "meridio-nsp.kindLabels" . }}
{{- with .trench }}
meridio.nordix.org/trench: {{ . }}
{{- end }}
{{- end }}

{{- define "meridio-nsp.labels" -}}
{{ include "meridio-nsp.selectorLabels" . }}
app.kubernetes.io/part-of: meridio
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Names of a process's objects: those of Meridio 1.x. */}}
{{- define "meridio-nsp.name" -}}
{{ empty .trench | ternary "nsp" (printf "nsp-%s" .trench) }}
{{- end }}

{{- define "meridio-nsp.service" -}}
{{ empty .trench | ternary "nsp-service" (printf "nsp-service-%s" .trench) }}
{{- end }}

{{/* A trench process may be called anything, so its account has a prefix of its own. */}}
{{- define "meridio-nsp.account" -}}
{{ empty .trench | ternary (printf "nsp-%s" (default "namespace" .component)) (printf "nsp-trench-%s" .trench) }}
{{- end }}

{{- define "meridio-nsp.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end }}

{{/* The mode that is in force, which the process chooses likewise. */}}
{{- define "meridio-nsp.mode" -}}
{{ .Values.authorisation | default (get (dict "spiffe" "mtls" "tls" "token" "plaintext" "peer-address") .Values.transport) }}
{{- end }}

{{/* How tokens are verified; empty where the mode does not look at them. */}}
{{- define "meridio-nsp.tokens" -}}
{{ has (include "meridio-nsp.mode" .) (list "token" "mtls") | ternary .Values.tokens.verification "" }}
{{- end }}

{{/* Whether a trench process has to show a token to the namespace process. */}}
{{- define "meridio-nsp.linkToken" -}}
{{ and .Values.serviceFication.enabled (eq (include "meridio-nsp.mode" .) "token") | ternary "yes" "" }}
{{- end }}

{{/* The target namespaces other than the release's own, as a JSON list. */}}
{{- define "meridio-nsp.targetNamespaces" -}}
{{- if kindIs "slice" .Values.serviceFication.targetNamespaces -}}
{{ without (uniq .Values.serviceFication.targetNamespaces) .Release.Namespace | sortAlpha | toJson }}
{{- else -}}
[]
{{- end -}}
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
