#!/usr/bin/env bash
# The chart without a cluster: it renders with every option, refuses what can't be meant by its name,
# and the plain manifests are what it makes.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
"$REPO/hack/helm-build.sh"
CHART="$REPO/charts/mirrorlet"

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
has '- --host-root=/host'
lacks '- --host-root=/host' --set host.files=false
has '- --manifests=/etc/mirrorlet/manifests'
has '- --manifests=/drained' --set drain=true
has 'emptyDir: {}' --set drain=true
lacks 'emptyDir: {}'
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
has '- --max-container-backoff=1m' --set 'extraArgs={--max-container-backoff=1m}'
has '- --node-api-port=10350'
has '- --tls-cert-file=/etc/x/c.crt' --set nodeApi.hostDirectory=/etc/x,nodeApi.tlsCertFile=c.crt,nodeApi.tlsPrivateKeyFile=c.key
lacks 'name: node-api' --set nodeApi.port=0
has 'name: system:nodes' --set identity.mode=node
lacks 'name: system:nodes' --set identity.mode=serviceAccount
has 'value: "none"' --set 'node.taints=null'
has 'value: "cpu=1,memory=2Gi"' --set-string node.systemReserved.cpu=1,node.systemReserved.memory=2Gi
has 'helm.sh/hook: test'
has 'value: $(HOST_NODE)-other' --set nodeNameSuffix=other

refuses /nodeNameSuffix --set nodeNameSuffix=Docker
refuses /host/root --set host.root=var/lib
refuses host.root --set host.root=/
refuses /host/dockerSocket --set host.dockerSocket=a/b
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
refuses serviceMonitor.enabled --set podMonitor.enabled=true,serviceMonitor.enabled=true,metrics.address=0.0.0.0
refuses nodeApi.hostDirectory --set nodeApi.clientCaFile=ca.crt
refuses nodeApi.tlsPrivateKeyFile --set nodeApi.hostDirectory=/etc/x,nodeApi.tlsCertFile=c.crt
refuses nodeApi.port --set nodeApi.port=10351
refuses /nodeApi/clientCaFile --set nodeApi.clientCaFile=/etc/ca.crt
refuses unheardOf --set unheardOf=1

"$REPO/hack/manifests.sh" --check
say "chart: every option renders, every wrong value is named, the manifests are in step"
