{{/* What no schema can say: values that do not go together. Each message names the value and what to do. */}}

{{- define "gateway.checks" -}}
{{- include "gateway.checkStorage" . -}}
{{- include "gateway.checkProject" . -}}
{{- include "gateway.checkNetwork" . -}}
{{- include "gateway.checkVariables" . -}}
{{- if and (or .Values.test.tool .Values.test.catalogue) (not (and .Values.test.tool .Values.test.catalogue .Values.test.tokenSecret.name)) -}}
{{- fail "test: a call needs test.catalogue, test.tool and test.tokenSecret.name; give all three, or none" -}}
{{- end -}}
{{- end -}}

{{- define "gateway.checkStorage" -}}
{{- if eq .Values.storage.type "sqlite" -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- fail (printf "replicas: %d pods cannot share one SQLite file; set replicas: 1 (workers: N runs more processes in the pod), or use storage.type: postgres" (int .Values.replicas)) -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "autoscaling.enabled: more than one pod cannot share one SQLite file; set autoscaling.enabled: false, or use storage.type: postgres" -}}
{{- end -}}
{{- else if not .Values.storage.postgres.secret.name -}}
{{- fail "storage.postgres.secret.name: name the Secret that has the connection string; the chart brings no database" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas: there cannot be more at least than autoscaling.maxReplicas allows at most" -}}
{{- end -}}
{{- end -}}

{{- define "gateway.checkProject" -}}
{{- $project := .Values.project -}}
{{- $given := or $project.configs $project.policies -}}
{{- $named := or $project.configMaps.configs.name $project.configMaps.policies.name -}}
{{- if eq $project.source "values" -}}
{{- if not (and $project.configs $project.policies) -}}
{{- fail "project: there is nothing to serve; give project.configs and project.policies, or name ConfigMaps (project.source: configMaps), or use an image that has the project (project.source: image)" -}}
{{- end -}}
{{- if $named -}}
{{- fail "project.configMaps: they are not used with project.source: values; set project.source: configMaps, or take them out" -}}
{{- end -}}
{{- else if $given -}}
{{- fail (printf "project.configs: files are not used with project.source: %s; set project.source: values, or take them out" $project.source) -}}
{{- end -}}
{{- if and (eq $project.source "configMaps") (not (and $project.configMaps.configs.name $project.configMaps.policies.name)) -}}
{{- fail "project.configMaps: name both project.configMaps.configs.name and project.configMaps.policies.name" -}}
{{- end -}}
{{- if and (eq $project.source "image") $named -}}
{{- fail "project.configMaps: they are not used with project.source: image; set project.source: configMaps, or take them out" -}}
{{- end -}}
{{- end -}}

{{- define "gateway.checkNetwork" -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.adminService.enabled) -}}
{{- fail "serviceMonitor.enabled: metrics are scraped through the Service of the admin plane; set adminService.enabled: true" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.serviceMonitor.open) (not .Values.serviceMonitor.tokenSecret.name) -}}
{{- fail "serviceMonitor: /metrics wants a credential; name one in serviceMonitor.tokenSecret, or set serviceMonitor.open: true and let the NetworkPolicy guard it" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.host: an Ingress needs the host it is for" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: an HTTPRoute needs the Gateway it belongs to" -}}
{{- end -}}
{{- if and .Values.networkPolicy.egress.hosts (ne .Values.networkPolicy.flavour "cilium") -}}
{{- fail "networkPolicy.egress.hosts: policies of Kubernetes know addresses only; use networkPolicy.egress.cidrs, or networkPolicy.flavour: cilium" -}}
{{- end -}}
{{- end -}}

{{- define "gateway.checkVariables" -}}
{{- $seen := dict -}}
{{- range $name := keys .Values.env | sortAlpha -}}
{{- if regexMatch "(?i)(token|secret|passwd|password|credentials?|api_?key|private_?key|_key|connection)$" $name -}}
{{- fail (printf "env.%s: this looks like a secret; put it into a Secret and name that in secretEnv" $name) -}}
{{- end -}}
{{- $_ := set $seen $name true -}}
{{- end -}}
{{- $own := dict "GATEWAY_CONFIGS" "project" "GATEWAY_POLICIES" "project" "GATEWAY_DATA_DIR" "storage" "GATEWAY_ENVIRONMENT" "environment" "GATEWAY_HOST" "listen" "GATEWAY_PORT" "service.port" "GATEWAY_ADMIN_HOST" "listen" "GATEWAY_ADMIN_PORT" "adminService.port" "GATEWAY_WORKERS" "workers" "GATEWAY_PUBLIC_URL" "publicUrl" "GATEWAY_PEER_URL" "storage.type" "GATEWAY_PEER_LISTEN" "storage.type" "GATEWAY_PEER_KEY_FILE" "storage.postgres.peerSecret" "GATEWAY_ALLOWED_HOSTS" "allowedHosts" "GATEWAY_ADMIN_ALLOWED_HOSTS" "adminService" "GATEWAY_ALLOWED_ORIGINS" "allowedOrigins" "GATEWAY_METRICS_OPEN" "serviceMonitor.open" "GATEWAY_PYTHON_PACKAGES" "pythonPackages" "GATEWAY_MAX_BODY" "maxBody" "GATEWAY_GRACE" "graceSeconds" -}}
{{- range $name := keys .Values.env | sortAlpha -}}
{{- if hasKey $own $name -}}
{{- fail (printf "env.%s: the chart sets it; use the value %s" $name (get $own $name)) -}}
{{- end -}}
{{- end -}}
{{- range .Values.secretEnv -}}
{{- if or (hasKey $seen .name) (hasKey $own .name) -}}
{{- fail (printf "secretEnv: %s is given twice" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- end -}}
