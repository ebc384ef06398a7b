{{/*
Kneewatch in a pod of vLLM's, for the chart that makes that pod. In: this chart's own context, `.Subcharts.kneewatch` in a
parent. Out, to be indented below the keys of their names: items of the pod's initContainers, items of its volumes, and
annotations for a Prometheus that reads them. How the two containers live beside each other:
deploy/kustomize/overlays/sidecar/sidecar.yaml.
*/}}
{{- define "kneewatch.sidecar.initContainers" -}}
{{- include "kneewatch.sidecar.asked" . -}}
- name: kneewatch
  image: {{ include "kneewatch.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
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
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
    {{- include "kneewatch.confined" . | nindent 4 }}
  resources: {{ toYaml .Values.resources | nindent 4 }}
  volumeMounts: {{ include "kneewatch.mounts" (list . "kneewatch-") | nindent 4 }}
{{- end -}}

{{- define "kneewatch.sidecar.volumes" -}}
{{- include "kneewatch.sidecar.asked" . -}}
{{- include "kneewatch.volumes" (list . "kneewatch-" (printf "emptyDir: {sizeLimit: %q}" .Values.sidecar.storeSize)) -}}
{{- end -}}

{{- define "kneewatch.sidecar.annotations" -}}
{{- include "kneewatch.sidecar.asked" . -}}
{{- if .Values.scrapeAnnotations }}{{ include "kneewatch.scrapeAnnotations" . }}{{ end -}}
{{- end -}}

{{/* The same as a strategic merge patch of vLLM's Deployment. */}}
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
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{ toYaml . | nindent 8 }}
      {{- end }}
      initContainers: {{ include "kneewatch.sidecar.initContainers" . | nindent 8 }}
      volumes: {{ include "kneewatch.sidecar.volumes" . | nindent 8 }}
{{- end -}}

{{/* Whether a target reads GPUs by the driver. */}}
{{- define "kneewatch.sidecar.nvml" -}}
{{- $asked := .Values.sidecar.nvml -}}
{{- if not .Values.existingConfigMap -}}
{{- range .Values.config.targets -}}{{- with .gpu -}}{{- if .nvml -}}{{- $asked = true -}}{{- end -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if $asked }}yes{{ end -}}
{{- end -}}

{{- define "kneewatch.sidecar.asked" -}}
{{- if not (and (hasKey .Values "existingConfigMap") (hasKey .Values "sidecar")) -}}
{{- fail "kneewatch.sidecar: include it with Kneewatch's own context, .Subcharts.kneewatch (or the alias), not the parent's" -}}
{{- else if not .Values.sidecar.enabled -}}
{{- fail "kneewatch.sidecar: set sidecar.enabled, or there is a pod of Kneewatch's own beside it" -}}
{{- end -}}
{{- end -}}
