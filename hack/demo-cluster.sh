#!/usr/bin/env bash
# Shows mirrorlet as a Node of a real cluster: etcd, kube-apiserver, kube-controller-manager,
# kube-scheduler and kubectl are Kubernetes' own, started here and ended at the end. Every step is
# checked, and one that doesn't happen in time ends the demo with exit 1. `make demo CLUSTER=1` runs
# it, after Engine, Kubernetes and images are there.
#
# MIRRORLET: the binary to show, instead of building one. DEMO_PROFILE: cargo profile.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

NODE=demo-docker
[ "$#" = 0 ] || die "usage: hack/demo-cluster.sh"

# shellcheck source=hack/demo-lib.sh
. "$REPO/hack/demo-lib.sh"
root_in_memory
CLUSTER_DIR="$root/cluster"
CLUSTER_NUMBER=254
# shellcheck source=hack/cluster.sh
. "$REPO/hack/cluster.sh"
clean_up_more() {
    export PATH="$PATH:/usr/sbin:/sbin"
    cluster_down
}
# What kubectl prints of a pod, by jsonpath; nothing when there is no such pod.
pod() { kubectl get pod "$1" --ignore-not-found --output "jsonpath=$2"; }
pod_is() { [ "$(pod "$1" "$2" 2>/dev/null)" = "$3" ]; }
pod_is_gone() { [ "$(kubectl get pod "$1" --ignore-not-found --output name 2>/dev/null || echo unknown)" = "" ]; }
pod_is_ready() { pod_is "$1" '{.status.conditions[?(@.type=="Ready")].status}' True; }
milliseconds() { date +%s%3N; }

# ---- the tour -------------------------------------------------------------------------------

title "A real control plane"
started=$(milliseconds)
cluster_up
note "Kubernetes $KUBE_VERSION is up in $(($(milliseconds) - started)) ms"
kubectl_shown version
kubectl_shown get nodes

title "The agent joins as Node $NODE, with a node's certificate: Node authorizer and NodeRestriction hold it"
mkdir -p "$manifests"
agent_arguments=(--kubeconfig "$(cluster_node_kubeconfig "$NODE")")
start_agent
owner="$(value .agent.owner)"
[ -n "$owner" ] || die "the agent tells no owner id"
node_is_ready() {
    [ "$(kubectl get node "$NODE" --ignore-not-found \
        --output 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]
}
wait_for "$CHANGE_SECONDS" "Node $NODE to be Ready" node_is_ready
kubectl_shown get nodes --output wide
note "its taint keeps other pods away: $(kubectl get node "$NODE" --output 'jsonpath={.spec.taints[0].key}:{.spec.taints[0].effect}')"

title "A manifest is dropped into the agent's directory: its mirror pod shows it"
cp "$REPO/examples/web.yaml" "$manifests/"
mirror="web-$NODE"
wait_for "$CHANGE_SECONDS" "mirror pod $mirror to be Ready" pod_is_ready "$mirror"
pod_is "$mirror" '{.spec.nodeName}' "$NODE" || die "the mirror is not bound to $NODE"
kubectl_shown get pods --output wide
note "mirror of: $(pod "$mirror" '{.metadata.annotations.kubernetes\.io/config\.mirror}'), owned by: $(pod "$mirror" '{.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}')"

title "kubectl describe tells its story"
story_is_told() { kubectl describe pod "$mirror" 2>/dev/null | grep -q -E '^ +Normal +Started '; }
wait_for "$CHANGE_SECONDS" "the event Started" story_is_told
kubectl_shown describe pod "$mirror"

title "kubectl delete pod: the mirror is back at once, the container never noticed"
uid="$(pod "$mirror" '{.metadata.uid}')"
container="$(container_id web httpd)"
started=$(milliseconds)
kubectl_shown delete pod "$mirror" --wait=false
mirror_is_back() {
    local now
    now="$(pod "$mirror" '{.metadata.uid}' 2>/dev/null)"
    [ -n "$now" ] && [ "$now" != "$uid" ]
}
wait_for "$CHANGE_SECONDS" "a new mirror" mirror_is_back
note "back within $(($(milliseconds) - started)) ms, kubectl's own time included: $uid → $(pod "$mirror" '{.metadata.uid}')"
wait_for "$CHANGE_SECONDS" "the new mirror to be Ready" pod_is_ready "$mirror"
[ "$(container_id web httpd)" = "$container" ] || die "the container was restarted"
kubectl_shown get pods

title "An ordinary Pod, bound to the Node: it runs here, and kubectl delete ends it with its grace"
cat >"$root/ordinary.yaml" <<END
apiVersion: v1
kind: Pod
metadata:
  name: ordinary
spec:
  nodeName: $NODE
  terminationGracePeriodSeconds: 20
  containers:
    - name: main
      image: mirrorlet.test/busybox:1
      imagePullPolicy: IfNotPresent
      command: [sh, -c, "trap 'echo told to end; exit 0' TERM; while :; do sleep 1 & wait \$!; done"]
END
kubectl_shown apply --filename "$root/ordinary.yaml"
wait_for "$CHANGE_SECONDS" "pod ordinary to be Ready" pod_is_ready ordinary
kubectl_shown get pods --output wide
ordinary_running() { docker ps --quiet --filter "label=mirrorlet.dev/owner=$owner" --filter label=io.kubernetes.pod.name=ordinary; }
[ -n "$(ordinary_running)" ] || die "no container of pod ordinary runs"
kubectl_shown delete pod ordinary --wait=false
wait_for "$CHANGE_SECONDS" "pod ordinary to be gone from the API server" pod_is_gone ordinary
[ -z "$(ordinary_running)" ] || die "the object went before its containers had ended"
note "its containers ended, then the object went"

title "kill -9 of the API server: static pods don't care"
truth="$(running_ids)"
uid="$(pod "$mirror" '{.metadata.uid}')"
cluster_stop kube-apiserver KILL
[ "$(running_ids)" = "$truth" ] || die "containers changed when the API server died"
cp "$REPO/examples/shared-volume.yaml" "$manifests/"
clock_runs() {
    report_has '.pods[] | select(.manifestName == "clock") | .phase == "Running" and .ready == .containersTotal'
}
wait_for "$CHANGE_SECONDS" "pod clock to run without an API server" clock_runs
note "a manifest dropped meanwhile runs:"
show "$MIRRORLET" status --root "$root"
cluster_apiserver
note "the API server is back"
wait_for "$CHANGE_SECONDS" "the mirror of clock" pod_is_ready "clock-$NODE"
wait_for "$CHANGE_SECONDS" "Node $NODE to be Ready" node_is_ready
[ "$(pod "$mirror" '{.metadata.uid}')" = "$uid" ] || die "the mirror of web was made again for nothing"
for id in $truth; do
    running_ids | grep -q -x "$id" || die "a container was restarted by the outage"
done
kubectl_shown get pods --output wide

title "A manifest goes, its pod and its mirror go"
rm "$manifests/web.yaml"
wait_for "$CHANGE_SECONDS" "the mirror of web to go" pod_is_gone "$mirror"
[ -z "$(container_id web httpd)" ] || die "the mirror went before its container"
kubectl_shown get pods

title "What happened, as the cluster saw it"
kubectl_shown get events --sort-by .lastTimestamp

title "SIGTERM: the agent ends, the pods stay"
truth="$(running_ids)"
kill -TERM "$agent"
wait_for "$STOP_SECONDS" "the agent to end" agent_gone
code=0
wait "$agent" || code=$?
[ "$code" = 0 ] || die "the agent ended with exit code $code"
[ "$(running_ids)" = "$truth" ] || die "stopping the agent stopped containers"
agent=""
note "pods and cluster are removed now"

printf '\nThe demo did all it should.\n'
