{{/*
Kneewatch as a sidecar in vLLM's pod, for inclusion by the chart that creates the pod. Argument: this chart's own context,
`.Subcharts.kneewatch` in a parent chart. Each template renders the contents of the key it is named after: initContainers,
volumes, and annotations for a Prometheus that reads them. Indent the output below that key. For how the two containers
work together see deploy/helm/values/sidecar.yaml.
*/}}
{{- define "kneewatch.sidecar.initContainers" -}}
{{- include "kneewatch.sidecar.asked" . -}}
- name: kneewatch
  image: {{ include "kneewatch.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  {{- with .Values.extraArgs }}
  args: {{ concat (list "run" "-c" "/etc/kneewatch/kneewatch.yml") . | toYaml | nindent 4 }}
  {{- end }}
  {{- if or (include "kneewatch.sidecar.nvml" .) .Values.extraEnv }}
  env:
    {{- if include "kneewatch.sidecar.nvml" . }}
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
    {{- end }}
    {{- with .Values.extraEnv }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
  ports:
    - {name: kneewatch, containerPort: 9876}
  securityContext:
    {{- $ofContainers := list "runAsNonRoot" "runAsUser" "runAsGroup" "seccompProfile" }}
    {{- include "kneewatch.user" (list . $ofContainers) | nindent 4 }}
    {{- with .Values.securityContext }}{{ toYaml . | nindent 4 }}{{ end }}
  resources: {{ toYaml .Values.resources | nindent 4 }}
  volumeMounts: {{ include "kneewatch.mounts" (list . "kneewatch-") | nindent 4 }}
{{- end -}}

{{- define "kneewatch.sidecar.volumes" -}}
{{- include "kneewatch.sidecar.asked" . -}}
{{- include "kneewatch.volumes" (list . "kneewatch-" (printf "emptyDir: {sizeLimit: %q}" .Values.sidecar.storeSize)) -}}
{{- end -}}

{{- define "kneewatch.sidecar.annotations" -}}
{{- include "kneewatch.sidecar.asked" . -}}
{{- if include "kneewatch.annotated" . }}{{ include "kneewatch.scrapeAnnotations" . }}{{ end -}}
{{- end -}}

{{/* The same as a strategic merge patch for vLLM's Deployment. */}}
{{- define "kneewatch.sidecar.patch" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Values.sidecar.deployment | quote }}
spec:
  template:
    {{- with include "kneewatch.sidecar.annotations" . }}
    metadata:
      annotations: {{ . | nindent 8 }}
    {{- end }}
    spec:
      {{- if and (include "kneewatch.sidecar.nvml" .) .Values.sidecar.runtimeClassName }}
      runtimeClassName: {{ .Values.sidecar.runtimeClassName | quote }}
      {{- end }}
      {{- with include "kneewatch.pullSecrets" . }}
      imagePullSecrets: {{ . | nindent 8 }}
      {{- end }}
      initContainers: {{ include "kneewatch.sidecar.initContainers" . | nindent 8 }}
      volumes: {{ include "kneewatch.sidecar.volumes" . | nindent 8 }}
{{- end -}}

{{/* "yes" if a target reads GPU metrics through NVML. */}}
{{- define "kneewatch.sidecar.nvml" -}}
{{- $asked := .Values.sidecar.nvml -}}
{{- if not .Values.existingConfigMap -}}
{{- range .Values.config.targets -}}{{- with .gpu -}}{{- if .nvml -}}{{- $asked = true -}}{{- end -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if $asked }}yes{{ end -}}
{{- end -}}

{{- define "kneewatch.sidecar.asked" -}}
{{- if not (and (hasKey .Values "existingConfigMap") (hasKey .Values "sidecar")) -}}
{{- fail "kneewatch.sidecar: included with the wrong context; pass Kneewatch's own, .Subcharts.kneewatch (or its alias), not the parent chart's" -}}
{{- else if not .Values.sidecar.enabled -}}
{{- fail "kneewatch.sidecar: Kneewatch would also run in its own pod; set sidecar.enabled" -}}
{{- end -}}
{{- end -}}
