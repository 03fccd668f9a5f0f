{{- define "mirrorlet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "mirrorlet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "mirrorlet.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "mirrorlet.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mirrorlet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mirrorlet.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mirrorlet.labels" -}}
{{ include "mirrorlet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Not those of the agents, whose selectors would take the approver for one. */ -}}
{{- define "mirrorlet.approverSelectorLabels" -}}
app.kubernetes.io/name: {{ include "mirrorlet.name" . }}-approver
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mirrorlet.approverLabels" -}}
{{ include "mirrorlet.approverSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "mirrorlet.serviceAccountName" -}}
{{- default (include "mirrorlet.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "mirrorlet.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- /* Where the kubeconfig of identity is, in the container. */ -}}
{{- define "mirrorlet.identityDirectory" -}}
{{- empty .Values.identity.bootstrapSecret | ternary .Values.identity.hostDirectory "/identity" -}}
{{- end -}}

{{- /* A map as key=value,key=value, in the order of keys. */ -}}
{{- define "mirrorlet.pairs" -}}
{{- $map := . -}}
{{- range $index, $key := keys . | sortAlpha }}{{ if $index }},{{ end }}{{ $key }}={{ get $map $key }}{{ end -}}
{{- end -}}

{{- /* What a schema can't say: values that don't go together. */ -}}
{{- define "mirrorlet.check" -}}
{{- $reads := or .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- if and $reads (eq .Values.metrics.address "127.0.0.1") -}}
{{- fail "podMonitor.enabled, serviceMonitor.enabled: Prometheus can't reach metrics.address 127.0.0.1; set it to an address of the host, or 0.0.0.0" -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- fail "podMonitor.enabled, serviceMonitor.enabled: one of them is enough; both count everything twice" -}}
{{- end -}}
{{- if and .Values.identity.bootstrapSecret (ne .Values.identity.mode "bootstrap") -}}
{{- fail "identity.bootstrapSecret: it is for identity.mode bootstrap" -}}
{{- end -}}
{{- range list "clientCaFile" "tlsCertFile" "tlsPrivateKeyFile" -}}
{{- if and (get $.Values.nodeApi .) (not $.Values.nodeApi.hostDirectory) -}}
{{- fail (printf "nodeApi.%s: name the directory of the host that it is in: nodeApi.hostDirectory" .) -}}
{{- end -}}
{{- end -}}
{{- if ne (empty .Values.nodeApi.tlsCertFile) (empty .Values.nodeApi.tlsPrivateKeyFile) -}}
{{- fail "nodeApi.tlsCertFile, nodeApi.tlsPrivateKeyFile: one is of no use without the other" -}}
{{- end -}}
{{- if eq (int .Values.nodeApi.port) (int .Values.metrics.port) -}}
{{- fail "nodeApi.port, metrics.port: they can't be the same" -}}
{{- end -}}
{{- range list "root" "manifests" "dockerSocketDirectory" -}}
{{- if eq (get $.Values.host .) "/" -}}
{{- fail (printf "host.%s: can't be / itself" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
