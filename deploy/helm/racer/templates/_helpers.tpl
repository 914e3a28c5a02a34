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

{{/* The claim that holds the artifact; nothing where there is none. */}}
{{- define "racer.artifactClaim" -}}
{{- with .Values.artifact -}}
{{- if .existingClaim -}}
{{ .existingClaim }}
{{- else if .claim.create -}}
{{ $.Release.Name }}-artifact
{{- end }}
{{- end }}
{{- end }}

{{/* Settings of a candidate's servers: its own above those of all; the argument is (list . candidate). */}}
{{- define "racer.vllm" -}}
{{ mergeOverwrite (deepCopy (index . 0).Values.vllm) (index . 1).vllm | toYaml }}
{{- end }}

{{/* A replica of a candidate; the argument is (list candidate number), from 0. */}}
{{- define "racer.replica" -}}
{{ index . 0 }}{{ if index . 1 }}-{{ add1 (index . 1) }}{{ end }}
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
    {{- $name := .name }}
    base_urls:
      {{- range $i := until (int (include "racer.vllm" (list $ .) | fromYaml).replicas) }}
      - http://{{ $.Release.Name }}-{{ include "racer.replica" (list $name $i) }}:8000/v1
      {{- end }}
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

{{/* The policy of a job that reaches the gateway alone; the argument is (list . component). */}}
{{- define "racer.toGatewayOnly" }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ (index . 0).Release.Name }}-{{ index . 1 }}
  labels:
    {{- include "racer.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "racer.selector" . | nindent 6 }}
  policyTypes: ["Ingress", "Egress"]
  egress:
    {{- include "racer.toNames" (index . 0) | nindent 4 }}
    - to:
        - podSelector:
            matchLabels:
              {{- include "racer.selector" (list (index . 0) "gateway") | nindent 14 }}
      ports:
        - protocol: TCP
          port: 8080
{{- end }}
