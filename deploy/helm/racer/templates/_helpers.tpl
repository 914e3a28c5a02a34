{{/* Labels by which pods are found; the argument is (list . component). */}}
{{- define "racer.selector" -}}
app.kubernetes.io/name: racer
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Those, and what made them. */}}
{{- define "racer.labels" -}}
{{ include "racer.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end }}

{{- define "racer.image" -}}
{{- with .Values.gateway -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else if .image.tag -}}
{{ .image.repository }}:{{ .image.tag }}
{{- else -}}
{{ .image.repository }}:{{ $.Chart.AppVersion }}{{ if .gpus }}-cuda{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "racer.secret" -}}
{{ required "existingSecret: name the Secret with RACER_DATA_KEY, RACER_ADMIN_KEY and RACER_STORE_URL" .Values.existingSecret }}
{{- end }}

{{/* A variable from the Secret; the argument is (list . variable). */}}
{{- define "racer.secretVariable" -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ include "racer.secret" (index . 0) }}
      key: {{ index . 1 }}
{{- end }}

{{/* The user of the image, and no rights. */}}
{{- define "racer.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "racer.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{/* racer.yaml of every gateway. */}}
{{- define "racer.config" -}}
{{ toYaml .Values.config }}
candidates:
{{- if not .Values.candidates }}
{{- fail "candidates: name at least one" }}
{{- end }}
{{- range .Values.candidates }}
  - name: {{ .name }}
    {{- if .vllm }}
    base_url: http://{{ $.Release.Name }}-{{ .name }}:8000/v1
    {{- end }}
    {{- with .settings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}

{{/* Rules of network policies: names, and the store. */}}
{{- define "racer.toNames" -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
      podSelector:
        matchLabels:
          k8s-app: kube-dns
  ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
{{- end }}

{{- define "racer.toStore" -}}
- to:
    {{- range .Values.networkPolicy.store.cidrs }}
    - ipBlock:
        cidr: {{ . }}
    {{- end }}
  ports:
    - protocol: TCP
      port: {{ .Values.networkPolicy.store.port }}
{{- end }}
