{{- /* 63 letters are the most that a label and the name of a Service may have. `-approver` is added to both
names. The names of the agents' pods have to begin with all of the full name: policy.yaml looks for it, and
Kubernetes cuts what it adds five letters to at 58. */ -}}
{{- define "mirrorlet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 54 | trimSuffix "-" -}}
{{- end -}}

{{- define "mirrorlet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else if contains (include "mirrorlet.name" .) .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "mirrorlet.name" .) | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mirrorlet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mirrorlet.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mirrorlet.commonLabels" -}}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "mirrorlet.labels" -}}
{{ include "mirrorlet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- include "mirrorlet.commonLabels" . }}
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
{{- include "mirrorlet.commonLabels" . }}
{{- end -}}

{{- define "mirrorlet.serviceAccountName" -}}
{{- default (include "mirrorlet.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- /* The digest decides; a tag beside it is for people. */ -}}
{{- define "mirrorlet.image" -}}
{{- $repository := .Values.image.repository -}}
{{- if contains "@" $repository -}}
{{- $repository -}}
{{- else if .Values.image.digest -}}
{{- printf "%s%s@%s" $repository (empty .Values.image.tag | ternary "" (printf ":%s" .Values.image.tag)) .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* Where pods may run: what `own` says, and never on a Node of ours. Terms are alternatives, so the
guard is added to each. */ -}}
{{- define "mirrorlet.affinity" -}}
{{- $affinity := deepCopy (default dict .own) -}}
{{- $node := default dict (get $affinity "nodeAffinity") -}}
{{- $required := default dict (get $node "requiredDuringSchedulingIgnoredDuringExecution") -}}
{{- $guard := dict "key" "mirrorlet.dev/node" "operator" "DoesNotExist" -}}
{{- $terms := list -}}
{{- range default (list dict) (get $required "nodeSelectorTerms") -}}
{{- $terms = append $terms (set . "matchExpressions" (append (default list .matchExpressions) $guard)) -}}
{{- end -}}
{{- $node = set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- toYaml (set $affinity "nodeAffinity" $node) -}}
{{- end -}}

{{- /* An address to listen on, as a host: of IPv6 without brackets. */ -}}
{{- define "mirrorlet.host" -}}
{{- . | trimPrefix "[" | trimSuffix "]" -}}
{{- end -}}

{{- /* Whether an address is the loopback's. */ -}}
{{- define "mirrorlet.isLoopback" -}}
{{- if regexMatch "^(.*:)?127[.]|^[0:]+:0*1$" (include "mirrorlet.host" .) }}true{{ end -}}
{{- end -}}

{{- /* Where the approver serves its metrics. */ -}}
{{- define "mirrorlet.approverAddress" -}}
{{- default "0.0.0.0" .Values.approver.metricsAddress -}}
{{- end -}}

{{- /* An address and a port, as one: list ADDRESS PORT. */ -}}
{{- define "mirrorlet.hostPort" -}}
{{- $host := include "mirrorlet.host" (first .) -}}
{{- contains ":" $host | ternary (printf "[%s]" $host) $host }}:{{ last . -}}
{{- end -}}

{{- /* The metrics of agents and approver: of this release, by the names of both. */ -}}
{{- define "mirrorlet.monitored" -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
  - key: app.kubernetes.io/name
    operator: In
    values: [{{ include "mirrorlet.name" . }}, {{ include "mirrorlet.name" . }}-approver]
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

{{- /* The configuration file of the agents, or nothing. With `drain` it names no URL that static pods come from. */ -}}
{{- define "mirrorlet.config" -}}
{{- $config := default dict .Values.config -}}
{{- if .Values.drain -}}
{{- $config = omit $config "manifestUrls" "manifestUrlHeaders" "manifestUrlCa" -}}
{{- end -}}
{{- with $config }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- /* Whether a path is a directory or below it: list PATH DIRECTORY. */ -}}
{{- define "mirrorlet.isWithin" -}}
{{- if hasPrefix (printf "%s/" (clean (last .))) (printf "%s/" (clean (first .))) }}true{{ end -}}
{{- end -}}

{{- /* What a schema can't say: values that don't go together. */ -}}
{{- define "mirrorlet.check" -}}
{{- $reads := or .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- $address := include "mirrorlet.host" .Values.metrics.address -}}
{{- if and $reads (include "mirrorlet.isLoopback" $address) -}}
{{- fail (printf "podMonitor.enabled, serviceMonitor.enabled: Prometheus can't reach metrics.address %s; set it to an address of the host, or 0.0.0.0" $address) -}}
{{- end -}}
{{- $approver := include "mirrorlet.approverAddress" . -}}
{{- if and (eq .Values.identity.mode "approver") (include "mirrorlet.isLoopback" $approver) -}}
{{- fail (printf "approver.metricsAddress: the kubelet's probe can't reach %s, and would restart the approver again and again; set it to 0.0.0.0 or ::" $approver) -}}
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
{{- if and (contains "@" .Values.image.repository) (or .Values.image.tag .Values.image.digest) -}}
{{- fail "image.tag, image.digest: image.repository names a digest already" -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name: name the account to use, since serviceAccount.create is false" -}}
{{- end -}}
{{- range $path, $key := dict "commonLabels" (default dict .Values.commonLabels) "podLabels" (default dict .Values.podLabels) -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey $key . -}}
{{- fail (printf "%s: %s is the chart's own; use nameOverride" $path .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range list "root" "manifests" "docker" "kubeconfig" "bootstrapKubeconfig" "metricsAddress" "nodeApiPort" "nodeApiAddress" "nodeName" "nodeIps" "nodeLabels" "registerWithTaints" "systemReserved" "clientCaFile" "tlsCertFile" "tlsPrivateKeyFile" "maxPods" "logLevel" "logFormat" "hostRoot" -}}
{{- if hasKey (default dict $.Values.config) . -}}
{{- fail (printf "config.%s: the chart has a value of its own for it" .) -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.nodeApi.port) (int .Values.metrics.port) -}}
{{- fail "nodeApi.port, metrics.port: they can't be the same" -}}
{{- end -}}
{{- range list "root" "manifests" "dockerSocketDirectory" -}}
{{- if eq (get $.Values.host .) "/" -}}
{{- fail (printf "host.%s: can't be / itself" .) -}}
{{- end -}}
{{- end -}}
{{- /* The directory is mounted read-only: a mount point below it has to be the host's already, and that of the
token isn't. /run is another directory than /var/run in the image, which has no symlinks. */ -}}
{{- if and (has .Values.identity.mode (list "approver" "serviceAccount")) (include "mirrorlet.isWithin" (list "/var/run/secrets/kubernetes.io/serviceaccount" .Values.host.dockerSocketDirectory)) -}}
{{- fail (printf "host.dockerSocketDirectory: the token of the pod has to be mounted below %s; where /var/run is a link to /run, use /run" .Values.host.dockerSocketDirectory) -}}
{{- end -}}
{{- /* What is mounted below host.root, which is Bidirectional, is mounted on the host, too, and stays there. */ -}}
{{- if .Values.privileged -}}
{{- $mounted := dict "host.dockerSocketDirectory" .Values.host.dockerSocketDirectory -}}
{{- if not .Values.drain -}}
{{- $mounted = set $mounted "host.manifests" .Values.host.manifests -}}
{{- end -}}
{{- if has .Values.identity.mode (list "node" "bootstrap") -}}
{{- $mounted = set $mounted "identity.hostDirectory" (include "mirrorlet.identityDirectory" .) -}}
{{- end -}}
{{- with .Values.nodeApi.hostDirectory -}}
{{- $mounted = set $mounted "nodeApi.hostDirectory" . -}}
{{- end -}}
{{- range $index, $mount := default (list) .Values.extraVolumeMounts -}}
{{- $mounted = set $mounted (printf "extraVolumeMounts[%d]" $index) $mount.mountPath -}}
{{- end -}}
{{- range $name, $path := $mounted -}}
{{- if include "mirrorlet.isWithin" (list $path $.Values.host.root) -}}
{{- $first := eq $name "host.manifests" | ternary "; copy the files to the new directory on every host first: agents that find it empty stop their static pods" "" -}}
{{- fail (printf "%s: %s is in host.root, %s; what is mounted there would stay on the host%s" $name $path $.Values.host.root $first) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.drain -}}
{{- range default (list) .Values.extraArgs -}}
{{- if hasPrefix "--manifest-url" . -}}
{{- fail (printf "extraArgs: with drain, static pods of %s would stay; leave it out, or set it as config.manifestUrls" .) -}}
{{- end -}}
{{- end -}}
{{- range default (list) .Values.extraEnv -}}
{{- if hasPrefix "MIRRORLET_MANIFEST_URL" .name -}}
{{- fail (printf "extraEnv: with drain, static pods of %s would stay; leave it out, or set it as config.manifestUrls" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
