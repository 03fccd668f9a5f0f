#!/usr/bin/env bash
# Installs the chart for real: a control plane, a kubelet on a containerd of its own, and beside it the
# Docker Engine, all on this machine. Each step is checked; the first that fails ends it.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
CLUSTER_NUMBER=253
CLUSTER_DIR="$MIRRORLET_DEV_DIR/helm-test"
# shellcheck source=hack/cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source=hack/kubelet.sh
. "$(dirname "${BASH_SOURCE[0]}")/kubelet.sh"

BINARY="${BINARY:-$REPO/target/x86_64-unknown-linux-gnu/release/mirrorlet}"
CHART="$REPO/charts/mirrorlet"
NODE="$HOST_NODE-docker"
# What the release makes on this host; not what an agent of this machine's own would use.
HOST="$CLUSTER_DIR/host"
METRICS_PORT=10391

engine_answers || die "no Docker Engine answers; run hack/docker-up.sh first"
"$REPO/hack/helm-build.sh"
"$REPO/hack/kube-build.sh" kubelet

helm() { "$HELM" --kubeconfig "$CLUSTER_DIR/admin.kubeconfig" "$@"; }
step() { say ""; say "== $*"; }
owned() { docker ps --quiet --no-trunc --filter "label=mirrorlet.dev/owner=$(cat "$HOST/root/owner")" "$@"; }
node_ready() { [ "$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; }
mirror_phase() { [ "$(kubectl get pod "$1-$NODE" -o 'jsonpath={.status.phase}' 2>/dev/null)" = "$2" ]; }
mirror_image() { [ "$(kubectl get pod "$1-$NODE" -o 'jsonpath={.spec.containers[0].image}' 2>/dev/null)" = "$2" ]; }
agent_pods() { kubectl get pods -n kube-system -l app.kubernetes.io/name=mirrorlet -o name; }
agent_gone() { [ -z "$(agent_pods)" ]; }

manifest() {
    cat >"$HOST/.new" <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: $1, image: "$2", imagePullPolicy: IfNotPresent, command: ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]}
YAML
    mv "$HOST/.new" "$HOST/manifests/$1.yaml"
}

# Everything mounted below the agent's root, the last first, and the root itself.
unmount_root() {
    local point
    for point in $(awk -v root="$HOST/root" 'index($5, root) == 1 { print $5 }' /proc/self/mountinfo | sort -r); do
        umount "$point"
    done
}

finish() {
    local status=$? ids
    [ "$status" = 0 ] || {
        kubectl get nodes,pods -A -o wide >&2 2>&1 || true
        kubectl logs -n kube-system -l app.kubernetes.io/name=mirrorlet --tail 20 >&2 2>/dev/null || true
    }
    kubelet_down || true
    cluster_down || true
    ids="$(owned --all 2>/dev/null || true)"
    # shellcheck disable=SC2086
    [ -z "$ids" ] || docker rm -fv $ids >/dev/null
    unmount_root
    exit "$status"
}
trap finish EXIT

step "image and servers"
unmount_root
rm -rf "$HOST"
mkdir -p "$HOST/manifests" "$HOST/root"
# What the agent mounts is to be seen by the Engine, as where systemd made the whole tree shared.
mount --bind "$HOST/root" "$HOST/root"
mount --make-rshared "$HOST/root"
"$REPO/hack/image.sh" "$BINARY" "$CLUSTER_DIR/image.tar"
rm -rf "$CLUSTER_DIR/etcd"
cluster_up
kubelet_up
host_ctr images import "$CLUSTER_DIR/image.tar" >/dev/null

step "helm lint, and what the API server says of every object"
helm lint --quiet "$CHART"
values=(--namespace kube-system --set "host.root=$HOST/root" --set "host.manifests=$HOST/manifests"
    --set "metrics.port=$METRICS_PORT" --set image.pullPolicy=Never)
helm template mirrorlet "$CHART" "${values[@]}" | kubectl apply --dry-run=server -f - >/dev/null

step "helm install --wait"
began=$SECONDS
helm install mirrorlet "$CHART" "${values[@]}" --wait --timeout 120s >/dev/null
wait_for 60 "Node $NODE to be Ready" node_ready "$NODE"
say "installed and Ready after $((SECONDS - began)) s"
kubectl get nodes -o wide

step "a manifest in the host's directory: the mirror runs on our Node"
manifest web mirrorlet.test/busybox:1
wait_for 60 "the mirror to run" mirror_phase web Running
kubectl get pods -o wide
kubectl get events --field-selector "involvedObject.name=web-$NODE"

step "an edit: the mirror is replaced"
manifest web mirrorlet.test/busybox:2
wait_for 60 "the new mirror" mirror_image web mirrorlet.test/busybox:2
wait_for 60 "it to run" mirror_phase web Running

step "a bad edit: the pod is unharmed"
before="$(owned | sort)"
printf 'kind: Pod\nmetadata: {name: [' >"$HOST/manifests/web.yaml"
sleep 3
[ "$(owned | sort)" = "$before" ] || die "a bad edit changed what runs"
manifest web mirrorlet.test/busybox:2

step "helm upgrade: the agent is replaced, no container is"
before="$(owned | sort)"
agent="$(agent_pods)"
helm upgrade mirrorlet "$CHART" "${values[@]}" --set logLevel=debug --wait --timeout 120s >/dev/null
[ "$(agent_pods)" != "$agent" ] || die "the agent is the old one"
wait_for 60 "Node $NODE to be Ready" node_ready "$NODE"
[ "$(owned | sort)" = "$before" ] || die "the upgrade touched containers"

step "the agent is killed: the kubelet starts it again, no container is touched"
restarts() { kubectl get pods -n kube-system -l app.kubernetes.io/name=mirrorlet -o 'jsonpath={.items[0].status.containerStatuses[0].restartCount}'; }
restarted() { [ "$(restarts)" = 1 ]; }
kill -KILL "$(pgrep --full --newest "^/mirrorlet run .*--root=$HOST/root")"
wait_for 60 "the agent to be restarted" restarted
wait_for 60 "Node $NODE to be Ready" node_ready "$NODE"
[ "$(owned | sort)" = "$before" ] || die "a killed agent cost containers"

step "helm uninstall: Nodes, mirrors and containers stay, the agent goes"
helm uninstall mirrorlet --namespace kube-system --wait
wait_for 60 "the agent's pod to go" agent_gone
[ "$(owned | sort)" = "$before" ] || die "the uninstall touched containers"
say ""
say "helm: every step passed"
