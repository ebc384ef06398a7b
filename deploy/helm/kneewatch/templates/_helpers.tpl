{{/* The chart's name. A parent chart may include this chart several times under aliases; .Chart.Name is then the alias. */}}
{{- define "kneewatch.called" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end -}}

{{/* Names of objects. Short enough for the longest ending, and for the label that a StatefulSet's name becomes. */}}
{{- define "kneewatch.fullname" -}}
{{- $called := include "kneewatch.called" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $called .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 40 | trimSuffix "-") $called | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kneewatch.instance" -}}
{{ ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (eq .Chart.Name "kneewatch") | trunc 63 | trimSuffix "-" | quote }}
{{- end -}}

{{- define "kneewatch.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default "kneewatch" | quote }}
app.kubernetes.io/instance: {{ include "kneewatch.instance" . }}
{{- end -}}

{{/* Labels of pods: the selector's, which nothing overrides, the values', and commonLabels. None of them names a version, so
that a new version of the chart alone replaces no pod. Arguments: the context, labels from the values. */}}
{{- define "kneewatch.podLabels" -}}
{{ merge (dict) (include "kneewatch.selector" (index . 0) | fromYaml) (index . 1) (index . 0).Values.commonLabels | toYaml }}
{{- end -}}

{{/* Labels of objects: those of pods, and Helm's. Arguments: the context, labels from the values. */}}
{{- define "kneewatch.labelled" -}}
{{- with index . 0 -}}
{{- $helm := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $helm "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{ merge (include "kneewatch.podLabels" $ | fromYaml) $helm | toYaml }}
{{- end -}}
{{- end -}}

{{- define "kneewatch.labels" -}}
{{ include "kneewatch.labelled" (list . dict) }}
{{- end -}}

{{/* The label that tells the Service of the pages from that of the pods' names, so that no pod is scraped twice. */}}
{{- define "kneewatch.scrapedService" -}}
app.kubernetes.io/component: monitor
{{- end -}}

{{/* The metadata of a PodMonitor and a ServiceMonitor. Arguments: the context, the name of their values. */}}
{{- define "kneewatch.monitorMetadata" -}}
{{- $monitor := index (index . 0).Values (index . 1) -}}
name: {{ include "kneewatch.fullname" (index . 0) }}
namespace: {{ $monitor.namespace | default (index . 0).Release.Namespace | quote }}
labels: {{ include "kneewatch.labelled" (list (index . 0) $monitor.labels) | nindent 2 }}
{{- end -}}

{{/* Where the two look for pods or Services, if they are in another namespace. Arguments: the same. */}}
{{- define "kneewatch.monitorNamespaces" -}}
{{- $namespace := (index . 0).Release.Namespace -}}
{{- if ne ((index (index . 0).Values (index . 1)).namespace | default $namespace) $namespace -}}
namespaceSelector:
  matchNames: [{{ $namespace | quote }}]
{{- end -}}
{{- end -}}

{{/* What their endpoints have in common. Arguments: the same. */}}
{{- define "kneewatch.metricsEndpoint" -}}
{{- $name := index . 1 -}}
{{- $monitor := index (index . 0).Values $name -}}
path: /metrics
{{- if (index . 0).Values.web.tls }}
scheme: https
{{- end }}
{{- with $monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with $monitor.scrapeTimeout }}
{{- if and $monitor.interval (gt (include "kneewatch.ms" . | int64) (include "kneewatch.ms" $monitor.interval | int64)) }}
{{- fail (printf "%s.scrapeTimeout: %s is longer than %s.interval, %s, which Prometheus refuses; shorten it" $name . $name $monitor.interval) }}
{{- end }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with $monitor.relabelings }}
relabelings: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $monitor.endpoint }}{{ toYaml . | nindent 0 }}{{ end }}
{{- end -}}

{{/* A duration such as 30s in milliseconds. */}}
{{- define "kneewatch.ms" -}}
{{ mul (regexFind "^[0-9]+" . | int64) (index (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+$" .)) }}
{{- end -}}

{{/* "yes" if pods have the annotations by which a Prometheus without the operator finds them. With both, it scrapes twice. */}}
{{- define "kneewatch.annotated" -}}
{{- if and .Values.scrapeAnnotations (not (or .Values.podMonitor.enabled .Values.serviceMonitor.enabled)) }}yes{{ end -}}
{{- end -}}

{{/* Labels of a Job's pods; they do not match the Service. Arguments: the context, the name. */}}
{{- define "kneewatch.jobLabels" -}}
{{- $root := index . 0 -}}
{{- $own := dict "app.kubernetes.io/name" (index . 1) "app.kubernetes.io/instance" (include "kneewatch.instance" $root | trimAll "\"") -}}
{{ merge $own $root.Values.commonLabels | toJson }}
{{- end -}}

{{- define "kneewatch.image" -}}
{{- $registry := (.Values.global | default dict).imageRegistry | default .Values.image.registry -}}
{{- $name := ternary (printf "%s/%s" (trimSuffix "/" $registry) .Values.image.repository) .Values.image.repository (ne $registry "") -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" $name .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) | quote }}
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

{{/* The namespaces in which the monitor lists pods, servers and dcgm-exporters, one per line: those in the configuration and
rbac.namespaces. */}}
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
{{- with .gpu -}}{{- with .dcgm -}}{{- with .kubernetes -}}
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
