{{/* The flags that all processes have. */}}
{{- define "meridio-nsp.args" -}}
{{- $values := .root.Values -}}
- --port={{ $values.port }}
- --metrics-address=:{{ $values.metrics.port }}
- --datasource=/run/nsp/data/registry.db
- --entry-timeout={{ $values.entryTimeout }}
- --transport={{ $values.transport }}
{{- if eq $values.transport "tls" }}
- --tls-cert-file=/run/nsp/tls/tls.crt
- --tls-key-file=/run/nsp/tls/tls.key
{{- if $values.tls.verifyClients }}
- --tls-client-ca-file=/run/nsp/tls/ca.crt
{{- end }}
{{- with $values.tls.trustDomain }}
- --trust-domain={{ . }}
{{- end }}
{{- else if eq $values.transport "spiffe" }}
- --spiffe-endpoint-socket=unix:///run/spire/sockets/{{ $values.spiffe.socket }}
{{- end }}
- --shutdown-timeout={{ sub $values.terminationGracePeriodSeconds 5 }}s
- --log-level={{ $values.logLevel }}
{{- end }}

{{/* Volumes of all processes, and where they are mounted. */}}
{{- define "meridio-nsp.volumes" -}}
{{- $values := .root.Values -}}
# The health socket, and temporary files of the database.
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if eq $values.transport "tls" }}
- name: tls
  secret:
    secretName: {{ $values.tls.secretName }}
    defaultMode: 0440
{{- else if eq $values.transport "spiffe" }}
- name: spire-agent-socket
  {{- if eq $values.spiffe.source "csi" }}
  csi:
    driver: {{ $values.spiffe.csiDriver }}
    readOnly: true
  {{- else }}
  hostPath:
    path: {{ $values.spiffe.hostPath }}
    type: Directory
  {{- end }}
{{- end }}
{{- if and .trench (include "meridio-nsp.linkToken" .root) }}
# It says to the namespace process which trench this is.
- name: token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          path: token
          audience: nsp.meridio.nordix.org
          expirationSeconds: 3600
{{- end }}
{{- if not $values.persistence.enabled }}
- name: nsp-data
  emptyDir:
    sizeLimit: {{ $values.persistence.size }}
{{- end }}
{{- end }}

{{- define "meridio-nsp.volumeMounts" -}}
{{- $values := .root.Values -}}
- name: nsp-data
  mountPath: /run/nsp/data
- name: tmp
  mountPath: /tmp
{{- if eq $values.transport "tls" }}
- name: tls
  mountPath: /run/nsp/tls
  readOnly: true
{{- else if eq $values.transport "spiffe" }}
- name: spire-agent-socket
  mountPath: /run/spire/sockets
  readOnly: true
{{- end }}
{{- if and .trench (include "meridio-nsp.linkToken" .root) }}
- name: token
  mountPath: /run/nsp/token
  readOnly: true
{{- end }}
{{- end }}

{{/* Where the pods run. */}}
{{- define "meridio-nsp.scheduling" -}}
{{- $values := .root.Values -}}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
{{- $constraints := list }}
{{- $same := dict "labelSelector" (dict "matchLabels" (include "meridio-nsp.kindLabels" $ | fromYaml)) }}
{{- range . }}
{{- $constraints = append $constraints (merge (dict) . $same) }}
{{- end }}
topologySpreadConstraints:
  {{- toYaml $constraints | nindent 2 }}
{{- end }}
{{- end }}

{{/* What pod security "restricted" demands, of a pod and of each of its containers. */}}
{{- define "meridio-nsp.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10003
runAsGroup: 10003
fsGroup: 10003
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "meridio-nsp.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
A StatefulSet of a process, even without a volume: it never runs two pods of one name at once, and a registry has one writer.
Beside the process this takes "args", its own flags, "resources" and "replicas".
*/}}
{{- define "meridio-nsp.statefulSet" -}}
{{- $values := .root.Values -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ include "meridio-nsp.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meridio-nsp.labels" . | nindent 4 }}
spec:
  replicas: {{ .replicas }}
  serviceName: {{ include "meridio-nsp.service" . }}
  selector:
    matchLabels:
      {{- include "meridio-nsp.selectorLabels" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- $labels := include "meridio-nsp.selectorLabels" . | fromYaml }}
        {{- if eq $values.transport "spiffe" }}
        {{- $_ := set $labels "spiffe.io/spiffe-id" "true" }}
        {{- end }}
        {{- toYaml (merge $labels $values.podLabels) | nindent 8 }}
      annotations:
        {{- toYaml (merge (dict "kubectl.kubernetes.io/default-container" "nsp") $values.podAnnotations) | nindent 8 }}
    spec:
      serviceAccountName: {{ include "meridio-nsp.account" . }}
      automountServiceAccountToken: true
      # Else Kubernetes would inject NSP_SERVICE_* variables for the Service nsp-service.
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      {{- with include "meridio-nsp.scheduling" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      securityContext:
        {{- include "meridio-nsp.podSecurity" . | nindent 8 }}
      containers:
        - name: nsp
          image: {{ include "meridio-nsp.image" .root }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args:
            {{- .args | trim | nindent 12 }}
            {{- include "meridio-nsp.args" . | nindent 12 }}
          env:
            - name: NSP_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
          ports:
            - name: grpc
              containerPort: {{ $values.port }}
            - name: metrics
              containerPort: {{ $values.metrics.port }}
          startupProbe:
            {{- include "meridio-nsp.probe" "Startup" | nindent 12 }}
            periodSeconds: 2
            failureThreshold: 60
          readinessProbe:
            {{- include "meridio-nsp.probe" "Readiness" | nindent 12 }}
            periodSeconds: 5
            failureThreshold: 3
          livenessProbe:
            {{- include "meridio-nsp.probe" "Liveness" | nindent 12 }}
            periodSeconds: 10
            failureThreshold: 6
          {{- with .resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- include "meridio-nsp.containerSecurity" . | nindent 12 }}
          volumeMounts:
            {{- include "meridio-nsp.volumeMounts" . | nindent 12 }}
      volumes:
        {{- include "meridio-nsp.volumes" . | nindent 8 }}
  {{- with $values.persistence }}
  {{- if .enabled }}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: {{ .whenDeleted }}
    whenScaled: Retain
  volumeClaimTemplates:
    - metadata:
        name: nsp-data
        labels:
          {{- include "meridio-nsp.selectorLabels" $ | nindent 10 }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .size }}
  {{- end }}
  {{- end }}
{{- end }}

{{- define "meridio-nsp.serviceObject" -}}
{{- $values := .root.Values -}}
apiVersion: v1
kind: Service
metadata:
  # Components know this name; a namespace has one.
  name: {{ include "meridio-nsp.service" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meridio-nsp.labels" . | nindent 4 }}
spec:
  type: ClusterIP
  ipFamilyPolicy: PreferDualStack
  selector:
    {{- include "meridio-nsp.selectorLabels" . | nindent 4 }}
  ports:
    - name: grpc
      port: {{ $values.port }}
      targetPort: grpc
      appProtocol: {{ eq $values.transport "plaintext" | ternary "kubernetes.io/h2c" "https" }}
    - name: metrics
      port: {{ $values.metrics.port }}
      targetPort: metrics
      appProtocol: http
{{- end }}

{{- define "meridio-nsp.accountObject" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "meridio-nsp.account" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meridio-nsp.labels" . | nindent 4 }}
automountServiceAccountToken: false
{{- end }}

{{/*
A Role and its binding, or the same for the cluster. Beside the process: "name", "rules", and "in", the namespace of the Role;
without it they are for the cluster.
*/}}
{{- define "meridio-nsp.role" -}}
{{- $kind := empty .in | ternary "ClusterRole" "Role" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ .name }}
  {{- with .in }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "meridio-nsp.labels" . | nindent 4 }}
rules:
  {{- .rules | trim | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .in }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "meridio-nsp.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "meridio-nsp.account" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
