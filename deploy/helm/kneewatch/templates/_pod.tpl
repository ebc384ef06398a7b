{{/* The action of a kubelet probe. Arguments: the context, the path. */}}
{{- define "kneewatch.asked" -}}
{{- $web := (index . 0).Values.web -}}
{{- if $web.auth -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ index . 1 }}, port: http{{ ternary ", scheme: HTTPS" "" $web.tls }}}
{{- end -}}
{{- end -}}

{{/* The user of a pod or container, which OpenShift chooses from the namespace's range. Arguments: the context, its keys. */}}
{{- define "kneewatch.user" -}}
{{- $context := (index . 0).Values.podSecurityContext -}}
{{- if (index . 0).Values.openshift -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" -}}
{{- end -}}
{{- with index . 1 -}}
{{- $kept := dict -}}
{{- range . -}}{{- if hasKey $context . -}}{{- $_ := set $kept . (get $context .) -}}{{- end -}}{{- end -}}
{{- $context = $kept -}}
{{- end -}}
{{ toYaml $context }}
{{- end -}}

{{- define "kneewatch.podSecurity" -}}
{{ include "kneewatch.user" (list . list) }}
{{- end -}}

{{- define "kneewatch.scrapeAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "9876"
prometheus.io/path: /metrics
{{- if .Values.web.tls }}
prometheus.io/scheme: https
{{- end }}
{{- end -}}

{{/* The volume mounts of Kneewatch's container. Arguments: the context, the prefix of the volume names. */}}
{{- define "kneewatch.mounts" -}}
{{- $as := index . 1 -}}
{{- with index . 0 -}}
- {name: {{ $as }}config, mountPath: /etc/kneewatch, readOnly: true}
- {name: {{ $as }}store, mountPath: /var/lib/kneewatch}
- {name: {{ $as }}tmp, mountPath: /tmp}
{{- if .Values.keys.secretName }}
- {name: {{ $as }}keys, mountPath: /run/secrets/kneewatch, readOnly: true}
{{- end }}
{{- if .Values.web.secretName }}
- {name: {{ $as }}web, mountPath: /etc/kneewatch-web, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The volumes for these mounts. Arguments: the same, and the store's source; empty with a claim template. */}}
{{- define "kneewatch.volumes" -}}
{{- $as := index . 1 -}}
{{- $store := index . 2 -}}
{{- with index . 0 -}}
- name: {{ $as }}config
  configMap: {name: {{ include "kneewatch.configMap" . }}}
{{- with $store }}
- name: {{ $as }}store
  {{ . }}
{{- end }}
- name: {{ $as }}tmp
  emptyDir: {sizeLimit: 16Mi}
{{- with .Values.keys.secretName }}
- name: {{ $as }}keys
  secret: {secretName: {{ . | quote }}}
{{- end }}
{{- with .Values.web.secretName }}
- name: {{ $as }}web
  secret: {secretName: {{ . | quote }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "kneewatch.pullSecrets" -}}
{{- with concat .Values.imagePullSecrets ((.Values.global | default dict).imagePullSecrets | default list) | uniq }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- define "kneewatch.placement" -}}
{{- with include "kneewatch.pullSecrets" . }}
imagePullSecrets: {{ . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
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
  labels: {{ include "kneewatch.podLabels" (list . .Values.podLabels) | nindent 4 }}
  {{- $scraped := dict }}
  {{- if include "kneewatch.annotated" . }}{{ $scraped = include "kneewatch.scrapeAnnotations" . | fromYaml }}{{ end }}
  {{- with merge (dict) .Values.podAnnotations $scraped }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "kneewatch.serviceAccount" . | quote }}
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
        {{- with .Values.extraArgs }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with .Values.extraEnv }}
      env: {{ toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: http, containerPort: 9876}
      securityContext: {{ toYaml .Values.securityContext | nindent 8 }}
      resources: {{ toYaml .Values.resources | nindent 8 }}
      # Health and readiness cover Kneewatch only. A target that is down must not restart the pod that reports it.
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
      volumeMounts: {{ include "kneewatch.mounts" (list . "") | nindent 8 }}
  {{- $store := "" }}
  {{- if not .Values.persistence.enabled }}
  {{- $store = printf "emptyDir: {sizeLimit: %q}" .Values.persistence.size }}
  {{- else if eq (int .Values.replicas) 1 }}
  {{- $claim := .Values.persistence.existingClaim | default (include "kneewatch.fullname" .) }}
  {{- $store = printf "persistentVolumeClaim: {claimName: %q}" $claim }}
  {{- end }}
  volumes: {{ include "kneewatch.volumes" (list . "" $store) | nindent 4 }}
{{- end -}}

{{/* Peers that may connect to Kneewatch: this namespace, and Prometheus in any namespace. */}}
{{- define "kneewatch.askers" -}}
- podSelector: {}
- namespaceSelector: {}
  podSelector: {matchLabels: {{ toJson .Values.networkPolicy.prometheusLabels }}}
{{- end -}}

{{/* Egress that Kneewatch needs: DNS and pods. The labels of DNS pods differ between clusters, so DNS may be any pod's. */}}
{{- define "kneewatch.egress" -}}
- to:
    - namespaceSelector: {}
    - ipBlock: {cidr: 169.254.20.10/32}  # NodeLocal DNSCache
  ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
# Policies see the port of the pod, and OpenShift's DNS pods have this one.
- to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: openshift-dns}}}]
  ports: [{port: 5353, protocol: UDP}, {port: 5353, protocol: TCP}]
- to: [{namespaceSelector: {}}]
  ports: [{port: 1, endPort: 65535, protocol: TCP}]
{{- end -}}

{{/* The API server is not a pod, and its address differs between clusters. */}}
{{- define "kneewatch.apiServer" -}}
- to: [{ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}}, {ipBlock: {cidr: "::/0", except: ["fe80::/10"]}}]
  ports: [{port: 443, protocol: TCP}, {port: 6443, protocol: TCP}]
{{- end -}}
