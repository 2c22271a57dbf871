{{/* What pods may reach, as rules of a NetworkPolicy. */}}

{{- define "gateway.testSelector" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end -}}

{{- define "gateway.egressDns" -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
      podSelector:
        matchLabels:
          k8s-app: kube-dns
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{- define "gateway.egress" -}}
{{- $egress := .Values.networkPolicy.egress }}
{{- if $egress.dns }}
{{ include "gateway.egressDns" . }}
{{- end }}
{{- range $egress.cidrs }}
- to:
    - ipBlock:
        cidr: {{ .cidr }}
        {{- $except := .except | default list }}
        {{- if eq .cidr "0.0.0.0/0" }}
        {{- $except = concat $except (list "169.254.0.0/16") | uniq }}
        {{- else if eq .cidr "::/0" }}
        {{- $except = concat $except (list "fd00:ec2::254/128" "fe80::/10") | uniq }}
        {{- end }}
        {{- with $except }}
        except:
          {{- toYaml . | nindent 10 }}
        {{- end }}
  ports:
    {{- range .ports }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
{{- end }}
{{- range $egress.pods }}
- to:
    - {{ toYaml (omit . "ports") | nindent 6 | trim }}
  ports:
    {{- range .ports }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
{{- end }}
{{- if not (or $egress.dns $egress.cidrs $egress.pods) }}
[]
{{- end }}
{{- end -}}
