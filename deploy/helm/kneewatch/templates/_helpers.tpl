{{- define "kneewatch.fullname" -}}
{{- if contains "kneewatch" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-kneewatch" (.Release.Name | trunc 40 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "kneewatch.selector" -}}
app.kubernetes.io/name: kneewatch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kneewatch.labels" -}}
{{ include "kneewatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kneewatch.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "kneewatch.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "kneewatch.fullname" .) }}
{{- end -}}

{{- define "kneewatch.configMap" -}}
{{ .Values.existingConfigMap | default (include "kneewatch.fullname" .) }}
{{- end -}}

{{/* The namespaces whose pods are listed, one a line: those of the configuration, and rbac.namespaces. */}}
{{- define "kneewatch.namespaces" -}}
{{- $found := .Values.rbac.namespaces -}}
{{- if not .Values.existingConfigMap -}}
{{- range .Values.config.targets -}}
{{- with .discover -}}{{- with .kubernetes -}}
{{- $found = append $found (.namespace | default $.Release.Namespace) -}}
{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $found | uniq | sortAlpha }}
{{ . }}
{{- end -}}
{{- end -}}

{{/* The namespace of the Leases, empty where there are none. */}}
{{- define "kneewatch.leases" -}}
{{- if .Values.existingConfigMap -}}
{{- if .Values.rbac.leases }}{{ .Release.Namespace }}{{ end -}}
{{- else if hasKey .Values.config "lease" -}}
{{ (.Values.config.lease | default dict).namespace | default .Release.Namespace }}
{{- else if .Values.rbac.leases -}}
{{ .Release.Namespace }}
{{- end -}}
{{- end -}}

{{/* Whether Kneewatch asks the API server for anything: then it gets a token. */}}
{{- define "kneewatch.asks" -}}
{{- if or (include "kneewatch.namespaces" .) (include "kneewatch.leases" .) }}yes{{ end -}}
{{- end -}}
