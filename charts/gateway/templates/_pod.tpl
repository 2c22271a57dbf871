{{/* Parts of pods: what every pod of the release has in common. */}}

{{- define "gateway.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.security }}
{{- if not (kindIs "invalid" .runAsUser) }}
runAsUser: {{ int64 .runAsUser }}
{{- end }}
{{- if not (kindIs "invalid" .runAsGroup) }}
runAsGroup: {{ int64 .runAsGroup }}
{{- end }}
{{- if not (kindIs "invalid" .fsGroup) }}
fsGroup: {{ int64 .fsGroup }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "gateway.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Variables that tell what is served. `gateway check` needs them as much as `gateway serve`. */}}
{{- define "gateway.projectEnv" -}}
- name: GATEWAY_CONFIGS
  value: /project
# Below the mount, where the gateway makes a folder of its own: some volumes may be written to by everybody.
- name: GATEWAY_DATA_DIR
  value: /data/gateway
{{- with .Values.environment }}
- name: GATEWAY_ENVIRONMENT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.pythonPackages }}
- name: GATEWAY_PYTHON_PACKAGES
  value: {{ join "," . | quote }}
{{- end }}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range .Values.secretEnv }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end }}
{{- if eq .Values.storage.type "postgres" }}
- name: {{ .Values.storage.postgres.variable }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.storage.postgres.secret.name }}
      key: {{ .Values.storage.postgres.secret.key }}
{{- end }}
{{- end -}}

{{- define "gateway.projectMounts" -}}
{{- if ne .Values.project.source "image" }}
- name: configs
  mountPath: /project/configs
  readOnly: true
- name: policies
  mountPath: /project/policies
  readOnly: true
{{- end }}
{{- range $index, $each := .Values.secretFiles }}
- name: secret-{{ $index }}
  mountPath: {{ $each.path }}
  readOnly: true
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "gateway.projectVolumes" -}}
{{- if ne .Values.project.source "image" }}
{{- range $what := list "configs" "policies" }}
- name: {{ $what }}
  configMap:
    name: {{ include "gateway.configMap" (list $what $) }}
    {{- if eq $.Values.project.source "values" }}
    items:
      {{- range $path := keys (index $.Values.project $what) | sortAlpha }}
      - key: {{ $path | replace "/" "__" }}
        path: {{ $path }}
      {{- end }}
    {{- else }}
    {{- with (index $.Values.project.configMaps $what).items }}
    items:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
{{- end }}
{{- end }}
{{- range $index, $each := .Values.secretFiles }}
- name: secret-{{ $index }}
  secret:
    secretName: {{ $each.secret }}
    defaultMode: 0440
    {{- with $each.items }}
    items:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSize }}
{{- end -}}

{{- define "gateway.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
