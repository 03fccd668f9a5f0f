#!/usr/bin/env bash
# The chart without a cluster: it renders with every option, refuses what can't be meant by its name,
# and the plain manifests are what it makes.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need jq jq
"$REPO/hack/helm-build.sh"
CHART="$REPO/charts/mirrorlet"
DIGEST="sha256:$(printf '%064d' 0)"

render() { "$HELM" template mirrorlet "$CHART" --namespace kube-system "$@" 2>&1; }

# has WORDS ARGUMENTS…: what is rendered with the arguments has the words.
has() {
    local words="$1" text
    shift
    text="$(render "$@")" || die "the chart refuses $*: $text"
    grep -q -F -e "$words" <<<"$text" || die "with $* there is no: $words"
}

# lacks WORDS ARGUMENTS…: it has not.
lacks() {
    local words="$1" text
    shift
    text="$(render "$@")" || die "the chart refuses $*: $text"
    ! grep -q -F -e "$words" <<<"$text" || die "with $* there is: $words"
}

# refuses NAME ARGUMENTS…: nothing is rendered, and the message has the value's name.
refuses() {
    local name="$1" text
    shift
    if text="$(render "$@")"; then die "the chart takes $*"; fi
    grep -q -F -e "$name" <<<"$text" || die "$* is refused without naming $name: $text"
}

"$HELM" lint --quiet "$CHART"
has 'enableServiceLinks: false'
has '- --host-root=/host'
lacks '- --host-root=/host' --set host.files=false
lacks 'path: /sys/fs/cgroup'
has 'path: /sys/fs/cgroup' --set host.cgroups=cgroupfs
lacks 'path: /run/systemd/system' --set host.cgroups=cgroupfs
has 'path: /run/systemd/system' --set host.cgroups=systemd
has '- --manifests=/etc/mirrorlet/manifests'
has '- --manifests=/drained' --set drain=true
has 'emptyDir: {}' --set drain=true
lacks 'emptyDir: {}'
# Nor are static pods of URLs wanted then.
urls=(--set 'config.manifestUrls={https://a/b},config.manifestUrlHeaders={A: b},config.manifestUrlCa=/ca.crt')
has manifestUrls "${urls[@]}"
for words in manifestUrl '- --config=' 'name: config' 'checksum/config' 'kind: ConfigMap'; do
    lacks "$words" "${urls[@]}" --set drain=true
done
lacks manifestUrl "${urls[@]}" --set drain=true,config.podNames=false
has 'podNames: false' "${urls[@]}" --set drain=true,config.podNames=false
sum() { render "$@" | grep 'checksum/config'; }
[ "$(sum "${urls[@]}" --set config.podNames=false)" != "$(sum "${urls[@]}" --set config.podNames=false,drain=true)" ] \
    || die "draining doesn't change the checksum of the configuration"
for argument in --manifest-url=http://a/ --manifest-url; do
    has "$argument" --set "extraArgs={$argument}"
    refuses extraArgs --set "drain=true,extraArgs={$argument}"
done
refuses extraEnv --set 'drain=true,extraEnv[0].name=MIRRORLET_MANIFEST_URL,extraEnv[0].value=http://a/'
# The default: an identity of each host, and an account that may only request it.
has '- --kubeconfig=/var/lib/mirrorlet/node.kubeconfig'
has '- --bootstrap-kubeconfig=in-cluster'
lacks '- --kubeconfig=in-cluster'
lacks 'path: /etc/mirrorlet/identity'
lacks 'secrets'
lacks 'serviceaccounts/token'
has '- --service-account=kube-system/mirrorlet'
has '- --service-account=kube-system/x' --set serviceAccount.name=x
has '- --node-name-suffix=other' --set nodeNameSuffix=other
has "endsWith('-other')" --set nodeNameSuffix=other
has '{key: mirrorlet.dev/node, operator: DoesNotExist}'
has 'resources: [certificatesigningrequests/approval]'
has 'name: system:nodes'
has 'replicas: 2' --set approver.replicas=2
for mode in serviceAccount node bootstrap; do
    lacks 'approve-certificates' --set "identity.mode=$mode"
    lacks 'certificatesigningrequests' --set "identity.mode=$mode"
done
has '- --kubeconfig=in-cluster' --set identity.mode=serviceAccount
has 'resources: [configmaps, secrets]' --set identity.mode=serviceAccount
has "username == 'system:serviceaccount:kube-system:mirrorlet'" --set identity.mode=serviceAccount
lacks 'kind: ValidatingAdmissionPolicy' --set identity.mode=serviceAccount,identity.policy=false
lacks 'kind: ValidatingAdmissionPolicy' --set identity.mode=node
has 'kind: ClusterRole'
lacks 'kind: ClusterRole' --set rbac.create=false
lacks 'kind: ClusterRole' --set identity.mode=node
has '- --kubeconfig=/etc/x/kubeconfig' --set identity.mode=node,identity.hostDirectory=/etc/x
has 'automountServiceAccountToken: false' --set identity.mode=node
has 'automountServiceAccountToken: false' --set identity.mode=bootstrap
has '- --kubeconfig=/var/lib/mirrorlet/node.kubeconfig' --set identity.mode=bootstrap
has '- --bootstrap-kubeconfig=/etc/mirrorlet/identity/kubeconfig' --set identity.mode=bootstrap
has '- --bootstrap-kubeconfig=/identity/kubeconfig' --set identity.mode=bootstrap,identity.bootstrapSecret=token
has 'secretName: token' --set identity.mode=bootstrap,identity.bootstrapSecret=token
lacks 'path: /etc/mirrorlet/identity' --set identity.mode=bootstrap,identity.bootstrapSecret=token
lacks 'kind: ClusterRole' --set identity.mode=bootstrap
has 'name: system:nodes' --set identity.mode=bootstrap
lacks 'bootstrap-kubeconfig' --set identity.mode=serviceAccount
lacks 'bootstrap-kubeconfig' --set identity.mode=node
has 'privileged: true'
lacks 'mountPropagation: Bidirectional' --set privileged=false
has '- SYS_PTRACE' --set privileged=false
has 'kind: PodDisruptionBudget' --set podDisruptionBudget.enabled=true
has 'kind: NetworkPolicy' --set networkPolicy.enabled=true
has 'kind: PodMonitor' --set podMonitor.enabled=true,metrics.address=0.0.0.0
has 'kind: ServiceMonitor' --set serviceMonitor.enabled=true,metrics.address=0.0.0.0
# Both monitors read the approver too, which has another name than the agents.
has 'values: [mirrorlet, mirrorlet-approver]' --set podMonitor.enabled=true,metrics.address=0.0.0.0
has 'values: [mirrorlet, mirrorlet-approver]' --set serviceMonitor.enabled=true,metrics.address=0.0.0.0
services() { render --set serviceMonitor.enabled=true,metrics.address=0.0.0.0 "$@" | grep -c '^kind: Service$'; }
[ "$(services)" = 2 ] || die "the approver has no Service for the ServiceMonitor"
[ "$(services --set identity.mode=node)" = 1 ] || die "there is a Service of an approver without an approver"
# Addresses of IPv6, in either form.
for address in :: '[::]'; do
    has '- --metrics-address=[::]:10351' --set "metrics.address=$address"
    has 'host: "::"' --set "metrics.address=$address"
    has '- --node-api-address=::' --set "nodeApi.address=$address"
    has '- --metrics-address=[::]:10351' --set "approver.metricsAddress=$address"
done
# shellcheck disable=SC2016
has '- --node-api-address=$(MIRRORLET_NODE_IP)' --set 'nodeApi.address=$(MIRRORLET_NODE_IP)'
has '- --metrics-address=127.0.0.1:10351'
has '- --metrics-address=0.0.0.0:10351'
has '- --max-container-backoff=1m' --set 'extraArgs={--max-container-backoff=1m}'
has '- --node-api-port=10350'
has '- --tls-cert-file=/etc/x/c.crt' --set nodeApi.hostDirectory=/etc/x,nodeApi.tlsCertFile=c.crt,nodeApi.tlsPrivateKeyFile=c.key
lacks 'name: node-api' --set nodeApi.port=0
# A directory that is both is mounted once.
mounts() { render --show-only templates/daemonset.yaml --set nodeApi.port=0 "$@" | grep -c -E '(mountPath|path): /etc/x/?$'; }
both=(--set nodeApi.hostDirectory=/etc/x,nodeApi.tlsCertFile=c.crt,nodeApi.tlsPrivateKeyFile=c.key)
for directory in /etc/x /etc/x/; do
    values=(--set "identity.mode=node,identity.hostDirectory=$directory")
    [ "$(mounts "${both[@]}" "${values[@]}")" = 2 ] || die "identity and node API in $directory are not one mount and one volume"
    has '- --tls-cert-file=/etc/x/c.crt' "${both[@]}" "${values[@]}"
    lacks 'name: node-api' --set nodeApi.port=0 "${both[@]}" "${values[@]}"
done
has 'name: node-api' --set nodeApi.port=0,identity.hostDirectory=/etc/x "${both[@]}"
has 'name: node-api' --set nodeApi.port=0,identity.mode=bootstrap,identity.bootstrapSecret=x,identity.hostDirectory=/etc/x "${both[@]}"
has 'name: system:nodes' --set identity.mode=node
lacks 'name: system:nodes' --set identity.mode=serviceAccount
has 'value: "none"' --set 'node.taints=null'
has 'value: "cpu=1,memory=2Gi"' --set-string node.systemReserved.cpu=1,node.systemReserved.memory=2Gi
has 'helm.sh/hook: test'
has 'args: [images, --root=/var/lib/mirrorlet]'
has 'image: r/x@sha256:' --set "image.repository=r/x,image.digest=$DIGEST"
has "image: r/x:v1@$DIGEST" --set "image.repository=r/x,image.tag=v1,image.digest=$DIGEST"
has "image: r/x@$DIGEST" --set "image.repository=r/x@$DIGEST"
# The guard stays beside what a user wants, in each alternative.
AFFINITY='affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms'
guards() { render --show-only templates/daemonset.yaml "$@" | grep -c -F 'key: mirrorlet.dev/node'; }
[ "$(guards --set "$AFFINITY[0].matchExpressions[0].key=a,$AFFINITY[0].matchExpressions[0].operator=Exists,$AFFINITY[1].matchExpressions[0].key=b,$AFFINITY[1].matchExpressions[0].operator=Exists")" = 2 ] \
    || die "the guard is not in each term of the user's affinity"
has 'key: a' --set "$AFFINITY[0].matchExpressions[0].key=a,$AFFINITY[0].matchExpressions[0].operator=Exists"
[ "$(guards --set affinity.podAntiAffinity.x=y)" = 1 ] || die "another affinity takes the guard away"
has 'podAntiAffinity' --set affinity.podAntiAffinity.x=y
labelled="$(render --set commonLabels.team=a | grep -c -x ' *team: a')"
objects="$(render | grep -c '^kind: ')"
[ "$labelled" -ge "$objects" ] || die "commonLabels: $labelled labels on $objects objects"
lacks 'kubernetes.io/os: linux' --set nodeSelector.kubernetes\\.io/os=null,approver.nodeSelector.kubernetes\\.io/os=null
has 'evictionHard' --set 'config.evictionHard={memory.available<1Gi}'
has '- --config=/config/config.yaml' --set config.podNames=false
has 'checksum/config' --set config.podNames=false
lacks '- --config='
lacks 'kind: ServiceAccount' --set serviceAccount.create=false,serviceAccount.name=x,identity.mode=serviceAccount,rbac.create=false
has 'serviceAccountName: x' --set serviceAccount.create=false,serviceAccount.name=x
has 'path: /readyz?exclude=engine'
has 'dnsPolicy: Default'
has 'nameservers:' --set 'dnsConfig.nameservers={192.0.2.1}'
has 'image: shipper' --set 'extraContainers[0].name=s,extraContainers[0].image=shipper'
has 'relabelings:' --set 'podMonitor.enabled=true,metrics.address=0.0.0.0,podMonitor.relabelings[0].action=drop'
has 'metricRelabelings:' --set 'serviceMonitor.enabled=true,metrics.address=0.0.0.0,serviceMonitor.metricRelabelings[0].action=drop'
has 'value: $(HOST_NODE)-other' --set nodeNameSuffix=other

# A key that isn't wanted is null: what the schema knows renders without it, or is refused by its name.
every=(--set podMonitor.enabled=true,metrics.address=0.0.0.0,prometheusRule.enabled=true,dashboard.enabled=true)
every+=(--set networkPolicy.enabled=true,podDisruptionBudget.enabled=true,privileged=false,config.podNames=false)
for value in $(jq -r '.properties | to_entries[] | .key as $key | $key, (.value.properties // {} | keys[] | "\($key).\(.)")' \
    "$CHART/values.schema.json"); do
    if text="$(render "${every[@]}" --set "$value=null")"; then continue; fi
    grep -q -F -e "missing property '${value##*.}'" -e "at '/$value'" -e 'serviceAccount.create is false' <<<"$text" \
        || die "$value=null is neither rendered nor refused by its name: $text"
done
for values in readinessProbe.periodSeconds=null livenessProbe.periodSeconds=null,livenessProbe.failureThreshold=null \
    affinity=null config=null,commonLabels=null,podLabels=null,nameOverride=null,fullnameOverride=null \
    updateStrategy=null,tolerations=null,resources=null,approver.resources=null,approver.tolerations=null; do
    has 'kind: DaemonSet' --set "$values"
done
has '{key: mirrorlet.dev/node, operator: DoesNotExist}' --set affinity=null

# Names stay within what Kubernetes takes, and the pods' begin with what the policy looks for.
long="$(printf 'a%.0s' {1..60})"
for values in "fullnameOverride=$long" "nameOverride=$long" "fullnameOverride=$long,nameOverride=$long"; do
    names="$("$HELM" template "${long:0:53}" "$CHART" --set "$values,serviceMonitor.enabled=true,metrics.address=0.0.0.0" \
        | grep -E -o '^ *(name|app\.kubernetes\.io/(name|instance)): [-a-z0-9]+$' | awk '{ print $2 }')"
    [ "$(grep -c . <<<"$names")" -gt 20 ] || die "with $values there are no names"
    ! grep -E '.{64}' <<<"$(grep -v -e '-client-authorities$' <<<"$names")" || die "with $values a name has more than 63 letters"
done

# As a dependency that a condition switches: charts do it by a value that this one has to take.
parent="$(mktemp -d)"
trap 'rm -rf "$parent"' EXIT
mkdir "$parent/charts"
cp -R "$CHART" "$parent/charts/mirrorlet"
printf '%s\n' 'apiVersion: v2' 'name: parent' 'version: 1.0.0' 'dependencies:' \
    "- {name: mirrorlet, version: '*', condition: mirrorlet.enabled}" >"$parent/Chart.yaml"
for enabled in true false; do
    text="$("$HELM" template parent "$parent" --set "mirrorlet.enabled=$enabled" 2>&1)" || die "as a dependency the chart is refused: $text"
    found=false
    ! grep -q 'kind: DaemonSet' <<<"$text" || found=true
    [ "$found" = "$enabled" ] || die "as a dependency with enabled: $enabled: $text"
done

refuses /nodeNameSuffix --set nodeNameSuffix=Docker
refuses /host/root --set host.root=var/lib
refuses host.root --set host.root=/
refuses /host/dockerSocket --set host.dockerSocket=a/b
for directory in /var /var/run /var/run/; do
    refuses host.dockerSocketDirectory --set "host.dockerSocketDirectory=$directory"
    has 'kind: DaemonSet' --set "host.dockerSocketDirectory=$directory,identity.mode=node"
done
for directory in /run /var/run/docker /var/r; do
    has 'kind: DaemonSet' --set "host.dockerSocketDirectory=$directory"
done
# Below host.root, mounts would stay on the host.
ROOT=/var/lib/mirrorlet
refuses host.manifests --set "host.manifests=$ROOT/manifests"
refuses host.manifests --set "host.manifests=$ROOT/"
refuses 'copy the files to the new directory on every host first' --set "host.manifests=$ROOT/manifests"
has 'kind: DaemonSet' --set "host.manifests=$ROOT/manifests,drain=true"
has 'kind: DaemonSet' --set "host.manifests=$ROOT/manifests,privileged=false"
has 'kind: DaemonSet' --set "host.manifests=$ROOT-manifests"
refuses host.dockerSocketDirectory --set "host.dockerSocketDirectory=$ROOT/run"
for mode in node bootstrap; do
    refuses identity.hostDirectory --set "identity.mode=$mode,identity.hostDirectory=$ROOT/identity"
done
has 'kind: DaemonSet' --set "identity.hostDirectory=$ROOT/identity"
has 'kind: DaemonSet' --set "identity.mode=bootstrap,identity.bootstrapSecret=x,identity.hostDirectory=$ROOT/identity"
refuses nodeApi.hostDirectory --set "nodeApi.hostDirectory=$ROOT/node-api"
refuses 'extraVolumeMounts[1]' --set "extraVolumeMounts[0].name=a,extraVolumeMounts[0].mountPath=/a,extraVolumeMounts[1].name=b,extraVolumeMounts[1].mountPath=$ROOT/b"
refuses /identity/mode --set identity.mode=both
refuses /approver/replicas --set approver.replicas=many
refuses /identity/bootstrapSecret --set identity.mode=bootstrap,identity.bootstrapSecret=A/b
refuses identity.bootstrapSecret --set identity.mode=node,identity.bootstrapSecret=token
refuses /node/taints/0 --set 'node.taints={key}'
refuses /node/maxPods --set node.maxPods=0
refuses /node/systemReserved --set node.systemReserved.gpu=1
refuses /metrics/port --set metrics.port=70000
refuses /logFormat --set logFormat=xml
refuses /image/pullPolicy --set image.pullPolicy=Sometimes
refuses /capabilities/0 --set 'capabilities={sys-admin}'
refuses /podMonitor/interval --set podMonitor.interval=often
refuses /podDisruptionBudget/minAvailable --set podDisruptionBudget.minAvailable=50%
refuses metrics.address --set podMonitor.enabled=true
refuses metrics.address --set podMonitor.enabled=true,metrics.address=::1
for value in metrics.address approver.metricsAddress nodeApi.address; do
    for address in localhost '' 10.0.0 '[::1' '::1]' eth0; do
        refuses "/${value/.//}" --set "$value=$address"
    done
done
# Kubernetes replaces variables in arguments, not in probes.
# shellcheck disable=SC2016
for address in '$(MIRRORLET_NODE_IP)' '$MIRRORLET_NODE_IP' '$()' '$(A-B)' '$(A)1'; do
    refuses /metrics/address --set "metrics.address=$address"
    refuses /approver/metricsAddress --set "approver.metricsAddress=$address"
    [ "$address" = '$(MIRRORLET_NODE_IP)' ] || refuses /nodeApi/address --set "nodeApi.address=$address"
done
for address in 127.0.0.1 127.1.2.3 ::1 '[::1]' 0:0:0:0:0:0:0:1; do
    refuses approver.metricsAddress --set "approver.metricsAddress=$address"
    has 'kind: DaemonSet' --set "approver.metricsAddress=$address,identity.mode=node"
    has 'kind: DaemonSet' --set "metrics.address=$address"
done
has 'kind: DaemonSet' --set approver.metricsAddress=fd00::1
refuses serviceMonitor.enabled --set podMonitor.enabled=true,serviceMonitor.enabled=true,metrics.address=0.0.0.0
refuses nodeApi.hostDirectory --set nodeApi.clientCaFile=ca.crt
refuses nodeApi.tlsPrivateKeyFile --set nodeApi.hostDirectory=/etc/x,nodeApi.tlsCertFile=c.crt
refuses nodeApi.port --set nodeApi.port=10351
refuses /nodeApi/clientCaFile --set nodeApi.clientCaFile=/etc/ca.crt
refuses /image/digest --set image.digest=sha256:1
refuses image.tag --set "image.repository=r/x@$DIGEST,image.tag=v1"
refuses serviceAccount.name --set serviceAccount.create=false
refuses commonLabels --set commonLabels.app\\.kubernetes\\.io/name=x
refuses config.root --set config.root=/x
# Helm reads an unquoted `off` as false.
refuses /config/imageGc --set config.imageGc=false
has 'imageGc: "off"' --set-string config.imageGc=off
refuses imageGC --set config.imageGC=all
# Other forms that the agent reads.
has 'imageGc: null' --set config.imageGc=null
has 'maximumImageGcAge: null' --set config.maximumImageGcAge=null
has 'evictionHard: null' --set config.evictionHard=null
has 'podNames: "false"' --set-string config.podNames=false
has 'imageGcHighThreshold: "85"' --set-string config.imageGcHighThreshold=85
has 'maximumDeadContainers: "-1"' --set-string config.maximumDeadContainers=-1
has 'containerLogMaxSize: 10485760' --set config.containerLogMaxSize=10485760
has 'network: 7' --set config.network=7
refuses /config/podNames --set-string config.podNames=yes
refuses /config/imageGcHighThreshold --set config.imageGcHighThreshold=101
refuses /config/imageGcHighThreshold --set-string config.imageGcHighThreshold=-1
refuses /config/settle --set config.settle=10
refuses /config/network --set config.network=true
refuses /config/maximumImageGcAge --set config.maximumImageGcAge=often
refuses /dnsPolicy --set dnsPolicy=Sometimes
refuses unheardOf --set unheardOf=1

# Alerts and dashboard: they load, they fire when they should, and every series is one of the agent's.
has 'kind: PrometheusRule' --set prometheusRule.enabled=true
has 'alert: MirrorletEngineDown' --set prometheusRule.enabled=true
# The host has no program: alerts name the command that asks the agent in its pod, which knows its root.
# shellcheck disable=SC2016
has '`kubectl exec -n kube-system AGENT-POD -- /mirrorlet status`' --set prometheusRule.enabled=true
# shellcheck disable=SC2016
lacks '`mirrorlet ' --set prometheusRule.enabled=true
has 'value: /var/lib/other' --set host.root=/var/lib/other
has 'absent(up{job=~"mirrorlet|mirrorlet-metrics|mirrorlet-approver|kube-system/mirrorlet"})' --set prometheusRule.enabled=true
has 'up{job=~"x|x-metrics|x-approver|kube-system/x"} == 0' --set prometheusRule.enabled=true,fullnameOverride=x
# The job is named as the DaemonSet is.
for values in "one" "my-mirrorlet" "one --set nameOverride=x"; do
    # shellcheck disable=SC2086
    text="$("$HELM" template $values --set prometheusRule.enabled=true "$CHART" 2>&1)" || die "the chart refuses $values: $text"
    name="$(grep -A 2 '^kind: DaemonSet$' <<<"$text" | sed -n 's/^  name: //p')"
    grep -q -F -e "absent(up{job=~\"$name|" <<<"$text" || die "with $values no alert has the job $name"
done
# shellcheck disable=SC2016
has '{{ $labels.instance }}' --set prometheusRule.enabled=true
has 'grafana_dashboard: "1"' --set dashboard.enabled=true
lacks 'monitoring.coreos.com'
lacks 'grafana_dashboard'
MONITORING="$CHART/monitoring"
PROMTOOL="$("$REPO/hack/promtool.sh")"
work="$(mktemp -d)"
trap 'rm -rf "$parent" "$work"' EXIT
cp "$MONITORING/rules.yaml" "$REPO/hack/monitoring/rules-test.yaml" "$work/"
checked="$("$PROMTOOL" check rules "$work/rules.yaml" 2>&1)" || die "the rules don't load: $checked"
checked="$("$PROMTOOL" test rules "$work/rules-test.yaml" 2>&1)" || die "the rules don't fire as they should: $checked"
# The dashboard's queries as rules, so that the parser of Prometheus reads them.
jq '{groups: [{name: "dashboard", rules: [.panels[].targets[].expr | gsub("\\$instance"; ".*")
    | {record: "x", expr: .}] | to_entries | map(.value + {labels: {n: (.key | tostring)}})}]}' \
    "$MONITORING/dashboard.json" >"$work/dashboard.yaml"
checked="$("$PROMTOOL" check rules "$work/dashboard.yaml" 2>&1)" || die "the dashboard's queries don't parse: $checked"
for series in $(cat "$MONITORING"/* | grep -o 'mirrorlet_[a-z_]*' | sort -u); do
    name="$(sed -E 's/^mirrorlet_//; s/_(total|bucket|count|sum)$//; s/_seconds$//' <<<"$series")"
    grep -q -F "\"$name\"" "$REPO/crates/host/src/telemetry/metrics/names.rs" \
        || die "$series: the agent has no such series"
done

"$REPO/hack/chart-readme.sh" --check
"$REPO/hack/chart-schema.sh" --check
"$REPO/hack/manifests.sh" --check
say "chart: every option renders, every wrong value is named, README, schema, manifests, alerts and dashboard are in step"
