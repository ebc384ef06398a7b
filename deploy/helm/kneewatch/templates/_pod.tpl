{{/* How a probe asks; in: the context, and the path. */}}
{{- define "kneewatch.asked" -}}
{{- $web := (index . 0).Values.web -}}
{{- if $web.auth -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ index . 1 }}, port: http{{ ternary ", scheme: HTTPS" "" $web.tls }}}
{{- end -}}
{{- end -}}

{{- define "kneewatch.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "kneewatch.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "kneewatch.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kneewatch.pod" -}}
metadata:
  labels:
    {{- include "kneewatch.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- if or .Values.scrapeAnnotations .Values.podAnnotations }}
  annotations:
    {{- if .Values.scrapeAnnotations }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "9876"
    prometheus.io/path: /metrics
    {{- if .Values.web.tls }}
    prometheus.io/scheme: https
    {{- end }}
    {{- end }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "kneewatch.serviceAccount" . }}
  automountServiceAccountToken: {{ ne (include "kneewatch.asks" .) "" }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  securityContext: {{ include "kneewatch.podSecurity" . | nindent 4 }}
  {{- include "kneewatch.placement" . | nindent 2 }}
  {{- if .Values.topologySpreadConstraints }}
  topologySpreadConstraints: {{ toYaml .Values.topologySpreadConstraints | nindent 4 }}
  {{- else if gt (int .Values.replicas) 1 }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector: {matchLabels: {{ include "kneewatch.selector" $ | fromYaml | toJson }}}
    {{- end }}
  {{- end }}
  containers:
    - name: kneewatch
      image: {{ include "kneewatch.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - run
        - -c
        - /etc/kneewatch/kneewatch.yml
        {{- if and .Values.shard (gt (int .Values.replicas) 1) }}
        - --total-shards={{ .Values.replicas }}
        {{- end }}
      {{- with .Values.extraEnv }}
      env: {{ toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: http, containerPort: 9876}
      securityContext: {{ include "kneewatch.confined" . | nindent 8 }}
      resources: {{ toYaml .Values.resources | nindent 8 }}
      # Healthy and ready speak of Kneewatch alone: a target that is down is what it is there to report.
      startupProbe:
        {{- include "kneewatch.asked" (list . "/-/healthy") | nindent 8 }}
        periodSeconds: 1
        timeoutSeconds: 2
        failureThreshold: 60
      livenessProbe:
        {{- include "kneewatch.asked" (list . "/-/healthy") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        {{- include "kneewatch.asked" (list . "/-/ready") | nindent 8 }}
        periodSeconds: 5
        timeoutSeconds: 2
      volumeMounts:
        - {name: config, mountPath: /etc/kneewatch, readOnly: true}
        - {name: store, mountPath: /var/lib/kneewatch}
        - {name: tmp, mountPath: /tmp}
        {{- if .Values.keys.secretName }}
        - {name: keys, mountPath: /run/secrets/kneewatch, readOnly: true}
        {{- end }}
        {{- if .Values.web.secretName }}
        - {name: web, mountPath: /etc/kneewatch-web, readOnly: true}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: config
      configMap: {name: {{ include "kneewatch.configMap" . }}}
    {{- if not .Values.persistence.enabled }}
    - name: store
      emptyDir: {sizeLimit: {{ .Values.persistence.size }}}
    {{- else if eq (int .Values.replicas) 1 }}
    - name: store
      persistentVolumeClaim: {claimName: {{ .Values.persistence.existingClaim | default (include "kneewatch.fullname" .) }}}
    {{- end }}
    - name: tmp
      emptyDir: {sizeLimit: 16Mi}
    {{- with .Values.keys.secretName }}
    - name: keys
      secret: {secretName: {{ . }}}
    {{- end }}
    {{- with .Values.web.secretName }}
    - name: web
      secret: {secretName: {{ . }}}
    {{- end }}
    {{- with .Values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end -}}
