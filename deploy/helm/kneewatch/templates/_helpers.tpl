{{/* A parent chart may include this chart several times under aliases. .Chart.Name is then the alias. */}}
{{- define "kneewatch.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 40 | trimSuffix "-") .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kneewatch.instance" -}}
{{ ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (eq .Chart.Name "kneewatch") | trunc 63 | trimSuffix "-" | quote }}
{{- end -}}

{{- define "kneewatch.selector" -}}
app.kubernetes.io/name: kneewatch
app.kubernetes.io/instance: {{ include "kneewatch.instance" . }}
{{- end -}}

{{- define "kneewatch.labels" -}}
{{ include "kneewatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* The chart's labels and labels from the values, which cannot override the selector's. Arguments: the context, the labels. */}}
{{- define "kneewatch.labelled" -}}
{{- $selector := include "kneewatch.selector" (index . 0) | fromYaml -}}
{{- $labels := include "kneewatch.labels" (index . 0) | fromYaml -}}
{{ merge (dict) $selector (index . 1) $labels | toYaml }}
{{- end -}}

{{/* The label that tells the Service of the pages from that of the pods' names, so that no pod is scraped twice. */}}
{{- define "kneewatch.scrapedService" -}}
app.kubernetes.io/component: monitor
{{- end -}}

{{/* What a PodMonitor's and a ServiceMonitor's endpoint have in common. Arguments: the context, the monitor's values. */}}
{{- define "kneewatch.metricsEndpoint" -}}
{{- $monitor := index . 1 -}}
path: /metrics
{{- if (index . 0).Values.web.tls }}
scheme: https
{{- end }}
{{- with $monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with $monitor.endpoint }}{{ toYaml . | nindent 0 }}{{ end }}
{{- end -}}

{{/* Labels of a Job's pods; they do not match the Service. Arguments: the context, the name. */}}
{{- define "kneewatch.jobLabels" -}}
{app.kubernetes.io/name: {{ index . 1 }}, app.kubernetes.io/instance: {{ include "kneewatch.instance" (index . 0) }}}
{{- end -}}

{{- define "kneewatch.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" .Values.image.repository .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end -}}
{{- end -}}

{{- define "kneewatch.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "kneewatch.fullname" .) }}
{{- end -}}

{{- define "kneewatch.configMap" -}}
{{ .Values.existingConfigMap | default (include "kneewatch.fullname" .) | quote }}
{{- end -}}

{{/* "yes" if Kneewatch runs as a monitor in a pod of its own. */}}
{{- define "kneewatch.ownPod" -}}
{{- if and .Values.monitor.enabled (not .Values.sidecar.enabled) }}yes{{ end -}}
{{- end -}}

{{/* The target of config that a Job measures, as JSON; {} with existingConfigMap. Arguments: the context, the name of the
value, the name of the target. */}}
{{- define "kneewatch.target" -}}
{{- $root := index . 0 -}}{{- $key := index . 1 -}}{{- $name := index . 2 -}}
{{- $found := dict -}}
{{- if not $root.Values.existingConfigMap -}}
{{- range $root.Values.config.targets -}}
{{- if eq .name $name -}}{{- $found = . -}}{{- end -}}
{{- end -}}
{{- if not (hasKey $found "base_url") -}}
{{- fail (printf "%s: no target of config with a base_url is named %q" $key $name) -}}
{{- end -}}
{{- if include "kneewatch.inPod" $found -}}
{{- fail (printf "%s: %q is at %s, which a Job in its own pod cannot reach; name a target that uses the server's Service" $key $name $found.base_url) -}}
{{- end -}}
{{- end -}}
{{ toJson $found }}
{{- end -}}

{{/* "yes" if the target's address is inside the pod. */}}
{{- define "kneewatch.inPod" -}}
{{- if regexMatch "^https?://(127\\.[0-9.]+|localhost|\\[::1\\])(:|/|$)" (.base_url | default "") }}yes{{ end -}}
{{- end -}}

{{/* The namespaces in which the monitor lists pods, one per line: those in the configuration and rbac.namespaces. */}}
{{- define "kneewatch.namespaces" -}}
{{- $found := list -}}
{{- if .Values.monitor.enabled -}}
{{- $found = .Values.rbac.namespaces -}}
{{- end -}}
{{- if and .Values.monitor.enabled (not .Values.existingConfigMap) -}}
{{- range .Values.config.targets -}}
{{- range list .discover .metrics_discovery -}}{{- with . -}}{{- with .kubernetes -}}
{{- $found = append $found (.namespace | default $.Release.Namespace) -}}
{{- end -}}{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $found | uniq | sortAlpha }}
{{ . }}
{{- end -}}
{{- end -}}

{{/* The namespace of the Leases; empty if none are used. */}}
{{- define "kneewatch.leases" -}}
{{- if not (or .Values.monitor.enabled .Values.ramp.enabled) -}}
{{- else if .Values.existingConfigMap -}}
{{- if .Values.rbac.leases }}{{ .Release.Namespace }}{{ end -}}
{{- else if hasKey .Values.config "lease" -}}
{{ (.Values.config.lease | default dict).namespace | default .Release.Namespace }}
{{- else if .Values.rbac.leases -}}
{{ .Release.Namespace }}
{{- end -}}
{{- end -}}

{{/* "yes" if Kneewatch calls the API server and therefore needs a token. */}}
{{- define "kneewatch.asks" -}}
{{- if or (include "kneewatch.namespaces" .) (include "kneewatch.leases" .) }}yes{{ end -}}
{{- end -}}
