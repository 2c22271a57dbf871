{{/* Names, labels and addresses that several objects share. */}}

{{- define "gateway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "gateway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "gateway.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gateway.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{/* Labels of an object; called with the component's name and the root. */}}
{{- define "gateway.labels" -}}
{{- $root := index . 1 -}}
app.kubernetes.io/name: {{ include "gateway.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 0 }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "gateway.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "gateway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "gateway.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the key that pods prove themselves to each other with. */}}
{{- define "gateway.peerSecret" -}}
{{- .Values.storage.postgres.peerSecret.name | default (printf "%s-peers" (include "gateway.fullname" .)) -}}
{{- end -}}

{{- define "gateway.serviceHost" -}}
{{ include "gateway.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "gateway.publicUrl" -}}
{{- if .Values.publicUrl -}}
{{- .Values.publicUrl -}}
{{- else if .Values.ingress.enabled -}}
{{- printf "%s://%s%s" (ternary "https" "http" (not (empty .Values.ingress.tlsSecret))) .Values.ingress.host (trimSuffix "/" .Values.ingress.path) -}}
{{- else if and .Values.httpRoute.enabled .Values.httpRoute.hostnames -}}
{{- printf "https://%s" (first .Values.httpRoute.hostnames) -}}
{{- else -}}
{{- printf "http://%s" (include "gateway.serviceHost" .) -}}{{- if ne (int .Values.service.port) 80 -}}:{{ .Values.service.port }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names of the ConfigMap that is mounted as configs or as policies; called with that word and the root. */}}
{{- define "gateway.configMap" -}}
{{- $what := index . 0 -}}{{- $root := index . 1 -}}
{{- if eq $root.Values.project.source "configMaps" -}}
{{- (index $root.Values.project.configMaps $what).name -}}
{{- else -}}
{{- printf "%s-%s" (include "gateway.fullname" $root) $what -}}
{{- end -}}
{{- end -}}

{{- define "gateway.claim" -}}
{{- .Values.storage.sqlite.existingClaim | default (printf "%s-data" (include "gateway.fullname" .)) -}}
{{- end -}}
