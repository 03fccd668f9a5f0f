#!/usr/bin/env bash
# Installs the chart for real: a control plane, a kubelet on a containerd of its own, and beside it the
# Docker Engine, all on this machine. Each step is checked; the first that fails ends it.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
CLUSTER_NUMBER=253
CLUSTER_DIR="$DEV_DIR/helm-test"
# shellcheck source=hack/cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source=hack/kubelet.sh
. "$(dirname "${BASH_SOURCE[0]}")/kubelet.sh"

BINARY="${BINARY:-$REPO/target/x86_64-unknown-linux-gnu/release/mirrorlet}"
# A debug build is as good for all but the size of the image: IMAGE_LIBRARIES=1 BINARY=target/debug/mirrorlet
CHART="$REPO/charts/mirrorlet"
NODE="$HOST_NODE-docker"
# What the release makes on this host; not what an agent of this machine's own would use.
HOST="$CLUSTER_DIR/host"
METRICS_PORT=10391
NODE_API_PORT=10392
# A second release beside it, on the same host and Engine.
OTHER="$CLUSTER_DIR/other"
OTHER_NODE="$HOST_NODE-other"
# What a static pod of a kubelet without an API server makes.
ALONE="$CLUSTER_DIR/alone"
ROOTS=("$HOST/root" "$OTHER/root" "$ALONE/root")
# Largest gap without a manager that an upgrade may leave on a machine with nothing else to do, and on any.
GAP_MAX_MS=5000
GAP_LIMIT_MS=30000

engine_answers || die "no Docker Engine answers; run hack/docker-up.sh first"
"$REPO/hack/helm-build.sh"
"$REPO/hack/kube-build.sh" kubelet

helm() { "$HELM" --kubeconfig "$CLUSTER_DIR/admin.kubeconfig" "$@"; }
step() { say ""; say "== $*"; }
owned_by() { docker ps --quiet --no-trunc --filter "label=mirrorlet.dev/owner=$(cat "$1/owner")" "${@:2}"; }
owned() { owned_by "$HOST/root" "$@"; }
status() { "$BINARY" status --root "$HOST/root"; }
node_ready() { [ "$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; }
mirror_phase() { [ "$(kubectl get pod "$1-$NODE" -o 'jsonpath={.status.phase}' 2>/dev/null)" = "$2" ]; }
mirror_image() { [ "$(kubectl get pod "$1-$NODE" -o 'jsonpath={.spec.containers[0].image}' 2>/dev/null)" = "$2" ]; }
# Not the approver, which has another name.
agent_pods() { kubectl get pods -n kube-system -l app.kubernetes.io/instance=mirrorlet,app.kubernetes.io/name=mirrorlet -o name; }
agent_gone() { [ -z "$(agent_pods)" ]; }

# manifest NAME IMAGE [HOST]: a static pod of the release that has HOST.
manifest() {
    local host="${3:-$HOST}"
    cat >"$host/.new" <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, emptyDir: {medium: Memory}}, {name: h, hostPath: {path: "$host/data", type: DirectoryOrCreate}}]
  containers:
  - name: $1
    image: "$2"
    imagePullPolicy: IfNotPresent
    command: ["sh", "-c", "trap 'exit 0' TERM; echo $1 runs; sleep 1000000 & wait"]
    volumeMounts: [{name: v, mountPath: /v}, {name: h, mountPath: /h}]
YAML
    mv "$host/.new" "$host/manifests/$1.yaml"
}

# prepare HOST: its directories. What the agent mounts is to be seen by the Engine, as where systemd
# made the whole tree shared.
prepare() {
    rm -rf "$1"
    mkdir -p "$1/manifests" "$1/root"
    mount --bind "$1/root" "$1/root"
    mount --make-rshared "$1/root"
}

# watch_gap FILE: until killed, notes the longest time in ms that nobody listened at the agent's port.
watch_gap() {
    local last now longest=0
    last="$(date +%s%3N)"
    while :; do
        if (exec 3<>"/dev/tcp/127.0.0.1/$METRICS_PORT") 2>/dev/null; then
            now="$(date +%s%3N)"
            ((now - last <= longest)) || { longest=$((now - last)); echo "$longest" >"$1"; }
            last="$now"
        fi
        sleep 0.05
    done
}

# Everything mounted below the agent's root, the last first, and the root itself.
unmount_roots() {
    local root point
    for root in "${ROOTS[@]}"; do
        for point in $(awk -v root="$root" 'index($5, root) == 1 { print $5 }' /proc/self/mountinfo | sort -r); do
            umount "$point"
        done
    done
}

watchers=()
finish() {
    local status=$? ids root
    [ "$status" = 0 ] || {
        kubectl get nodes,pods -A -o wide >&2 2>&1 || true
        kubectl logs -n kube-system -l app.kubernetes.io/name=mirrorlet --tail 20 >&2 2>/dev/null || true
        [ ! -s "$CLUSTER_DIR/alone.log" ] || tail -n 20 "$CLUSTER_DIR/alone.log" >&2
    }
    [ "${#watchers[@]}" = 0 ] || kill "${watchers[@]}" 2>/dev/null || true
    kubelet_down || true
    cluster_down || true
    for root in "${ROOTS[@]}"; do
        [ -f "$root/owner" ] || continue
        ids="$(owned_by "$root" --all 2>/dev/null || true)"
        # shellcheck disable=SC2086
        [ -z "$ids" ] || docker rm -fv $ids >/dev/null
    done
    unmount_roots
    exit "$status"
}
trap finish EXIT

step "image and servers"
unmount_roots
prepare "$HOST"
prepare "$OTHER"
"$REPO/hack/image.sh" "$BINARY" "$CLUSTER_DIR/image.tar"
image_bytes="$(stat -c %s "$CLUSTER_DIR/image.tar")"
[ "${IMAGE_LIBRARIES:-}" = 1 ] || ((image_bytes < IMAGE_MAX)) || die "image: $image_bytes bytes, more than the $IMAGE_MAX it may have"
rm -rf "$CLUSTER_DIR/etcd"
cluster_up
kubelet_up
host_ctr images import "$CLUSTER_DIR/image.tar" >/dev/null
docker save mirrorlet.test/busybox:1 | host_ctr images import - >/dev/null

step "helm lint, and what the API server says of every object"
helm lint --quiet "$CHART"
values=(--namespace kube-system --set "host.root=$HOST/root" --set "host.manifests=$HOST/manifests"
    --set "metrics.port=$METRICS_PORT" --set "nodeApi.port=$NODE_API_PORT" --set image.pullPolicy=Never
    # The tree of this machine may be private; only the roots are shared.
    --set host.filesPropagation=None --set "config.evictionHard={none}")
helm template mirrorlet "$CHART" "${values[@]}" | kubectl apply --dry-run=server -f - >/dev/null

step "helm install --wait"
began="$(date +%s%3N)"
helm install mirrorlet "$CHART" "${values[@]}" --wait --timeout 120s >/dev/null
for name in "$NODE" "$HOST_NODE"; do
    wait_for 60 "Node $name to be Ready" node_ready "$name"
done
installed_ms=$(($(date +%s%3N) - began))
kubectl get nodes -o wide
status
! status | grep -q 'help:' || die "the chart grants less than the agent needs"

step "the agent is its Node, by a certificate that the approver approved; its account may only ask for that"
certificate="$HOST/root/pki/client-current.pem"
subject="$(openssl x509 -in "$certificate" -noout -subject -nameopt multiline | awk 'NF == 3 { print $3 }' | sort | tr '\n' ' ')"
[ "$subject" = "system:node:$NODE system:nodes " ] || die "the certificate is for: $subject"
approved() { kubectl get csr -o 'jsonpath={range .items[*]}{.spec.username} {.status.conditions[*].reason}{"\n"}{end}' | sort -u; }
approved
[ "$(approved)" = "system:serviceaccount:kube-system:mirrorlet MirrorletApproved" ] || die "somebody else approved, or asked"
kubectl get lease -n kube-system mirrorlet-approver >/dev/null || die "the approver has no Lease"
may() { kubectl auth can-i --quiet --as system:serviceaccount:kube-system:mirrorlet "$@"; }
may create certificatesigningrequests || die "the account can't ask"
for right in "create pods" "delete pods" "get secrets" "create serviceaccounts/token" "patch nodes/status" "approve certificatesigningrequests"; do
    # shellcheck disable=SC2086
    ! may $right -A || die "the account may: $right"
done
# It is what the agent calls with: nothing else has its rights.
[ "$(kubectl get node "$NODE" -o 'jsonpath={.metadata.labels.mirrorlet\.dev/node}')" = true ] || die "the Node has no label"

step "a pod of the release is not bound to a Node of ours, whatever its labels say"
lure() {
    kubectl create --raw "/api/v1/namespaces/kube-system/pods/$1/binding" -f - 2>&1 <<JSON
{"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "$1"}, "target": {"kind": "Node", "name": "$NODE"}}
JSON
}
for name in mirrorlet-approver-lured other-lured; do
    kubectl run "$name" -n kube-system --image mirrorlet.test/busybox:1 --overrides '{"spec": {"schedulerName": "nobody"}}' >/dev/null
done
lured="$(lure mirrorlet-approver-lured || true)"
grep -q "run on kubelets' Nodes only" <<<"$lured" || die "it was bound: $lured"
lure other-lured >/dev/null || die "another pod can't be bound"
kubectl delete pod -n kube-system mirrorlet-approver-lured other-lured --timeout=60s >/dev/null

step "the kubelet runs pods of its own beside the agent's"
kubectl create -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: beside}
spec:
  nodeName: $HOST_NODE
  terminationGracePeriodSeconds: 1
  containers: [{name: beside, image: "mirrorlet.test/busybox:1", imagePullPolicy: Never, command: [sleep, "1000000"]}]
YAML
kubectl wait --for=condition=Ready pod/beside --timeout=60s >/dev/null
[[ "$(kubectl get pod beside -o 'jsonpath={.status.podIP}')" = "${HOST_PODS%.0/24}".* ]] || die "it has no address of the pods' network"
! docker ps --format '{{.Names}}' | grep -q '^k8s_beside_' || die "the Engine runs the kubelet's pod"

step "helm test: the agent and its Engine answer"
helm test mirrorlet --namespace kube-system --timeout 60s >/dev/null

step "a command in the agent's pod, as the notes of the chart have it"
pod="$(kubectl get pods -n kube-system -l app.kubernetes.io/name=mirrorlet,app.kubernetes.io/instance=mirrorlet \
    --field-selector "spec.nodeName=$HOST_NODE" -o name)"
answer="$(kubectl exec -n kube-system "$pod" -c mirrorlet -- /mirrorlet status)"
grep -q -F "$NODE" <<<"$answer" || die "/mirrorlet status in the agent's pod says: $answer"

step "a manifest in the host's directory: the mirror runs on our Node"
manifest web mirrorlet.test/busybox:1
wait_for 60 "the mirror to run" mirror_phase web Running
kubectl get pods -o wide
kubectl get events --field-selector "involvedObject.name=web-$NODE"
logged() { kubectl logs "web-$NODE" 2>/dev/null | grep -q -x 'web runs'; }
wait_for 60 "its log, by the node API" logged

step "an edit: the mirror is replaced, and a watch of events shows how"
kubectl get events --watch --watch-only -o 'custom-columns=REASON:.reason,OBJECT:.involvedObject.name' \
    >"$CLUSTER_DIR/events.log" 2>/dev/null &
watchers+=($!)
# The watch is there when it shows something: an event of ours.
beat() {
    kubectl create -f - >/dev/null <<YAML
apiVersion: v1
kind: Event
metadata: {generateName: beat-, namespace: default}
involvedObject: {kind: Node, name: beat}
reason: Beat
type: Normal
YAML
    grep -q '^Beat' "$CLUSTER_DIR/events.log"
}
wait_for 30 "the watch of events" beat
manifest web mirrorlet.test/busybox:2
wait_for 60 "the new mirror" mirror_image web mirrorlet.test/busybox:2
wait_for 60 "it to run" mirror_phase web Running
told() { grep -q -E "^$1 +web-$NODE" "$CLUSTER_DIR/events.log"; }
for reason in Killing Created Started; do
    wait_for 30 "the event $reason" told "$reason"
done
cat "$CLUSTER_DIR/events.log"

step "a bad edit: it is told, and the pod is unharmed"
before="$(owned | sort)"
printf 'kind: Pod\nmetadata: {name: [' >"$HOST/manifests/web.yaml"
held() { status 2>/dev/null | grep -q '(held)'; }
wait_for 30 "the last good version to be held" held
status
[ "$(owned | sort)" = "$before" ] || die "a bad edit changed what runs"
manifest web mirrorlet.test/busybox:2

step "helm upgrade: the agent is replaced, no container is"
before="$(owned | sort)"
agent="$(agent_pods)"
rm -f "$CLUSTER_DIR/gap"
watch_gap "$CLUSTER_DIR/gap" &
watchers+=($!)
helm upgrade mirrorlet "$CHART" "${values[@]}" --set logLevel=debug --wait --timeout 120s >/dev/null
[ "$(agent_pods)" != "$agent" ] || die "the agent is the old one"
wait_for 60 "Node $NODE to be Ready" node_ready "$NODE"
[ "$(owned | sort)" = "$before" ] || die "the upgrade touched containers"
gap_ms="$(cat "$CLUSTER_DIR/gap")"
((gap_ms < GAP_LIMIT_MS)) || die "the upgrade left $gap_ms ms without a manager, more than $GAP_LIMIT_MS ms"

step "the agent is killed: the kubelet starts it again, no container is touched"
restarts() { kubectl get pods -n kube-system -l app.kubernetes.io/instance=mirrorlet,app.kubernetes.io/name=mirrorlet -o 'jsonpath={.items[0].status.containerStatuses[0].restartCount}'; }
restarted() { [ "$(restarts)" = 1 ]; }
kill -KILL "$(pgrep --full --newest "^/mirrorlet run .*--root=$HOST/root")"
wait_for 60 "the agent to be restarted" restarted
wait_for 60 "Node $NODE to be Ready" node_ready "$NODE"
[ "$(owned | sort)" = "$before" ] || die "a killed agent cost containers"

step "the agent's pod is deleted: another takes its place, no container is touched"
agent="$(agent_pods)"
kubectl delete -n kube-system "$agent" --wait=false >/dev/null
replaced() { [ "$(agent_pods)" != "$agent" ] && [ -n "$(agent_pods)" ] && node_ready "$NODE" && status >/dev/null 2>&1; }
wait_for 60 "another agent" replaced
[ "$(owned | sort)" = "$before" ] || die "a deleted agent cost containers"

step "a second release on the host: another root, another Node, the same Engine; as a ServiceAccount"
others=(--namespace kube-system --set identity.mode=serviceAccount --set nodeNameSuffix=other --set "host.root=$OTHER/root"
    --set "host.manifests=$OTHER/manifests" --set metrics.port=10393 --set nodeApi.port=10394
    --set image.pullPolicy=Never --set host.filesPropagation=None --set "config.evictionHard={none}" --wait --timeout 120s)
helm install second "$CHART" "${others[@]}" >/dev/null
wait_for 60 "Node $OTHER_NODE to be Ready" node_ready "$OTHER_NODE"
manifest web mirrorlet.test/busybox:1 "$OTHER"
other_runs() { [ "$(kubectl get pod "web-$OTHER_NODE" -o 'jsonpath={.status.phase}' 2>/dev/null)" = Running ]; }
wait_for 60 "its pod of the same name" other_runs
# What its policy holds back, with the token of the agent's own pod, which is bound to this host.
agent="$(kubectl get pods -n kube-system -l app.kubernetes.io/instance=second -o 'jsonpath={.items[0].metadata.name}')"
token="$(kubectl create token second-mirrorlet -n kube-system --bound-object-kind Pod --bound-object-name "$agent")"
thief() { "$KUBE_BIN/kubectl" --server "https://$CLUSTER_ADDRESS:443" --certificate-authority "$CLUSTER_DIR/pki/ca.crt" --token "$token" "$@" 2>&1; }
stolen="$(thief delete pod "web-$NODE" --wait=false || true)"
grep -q "an agent writes only its own host's Node" <<<"$stolen" || die "a pod of another Node was deleted: $stolen"
kubectl get nodes,pods -o wide
[ "$(owned | sort)" = "$before" ] || die "a second release touched the first one's containers"
theirs="$(owned_by "$OTHER/root" | sort)"

step "helm uninstall: Nodes, mirrors and containers stay, the agent goes"
helm uninstall mirrorlet --namespace kube-system --wait
wait_for 60 "the agent's pod to go" agent_gone
[ "$(owned | sort)" = "$before" ] || die "the uninstall touched containers"
kubectl get node "$NODE" >/dev/null || die "the uninstall took the Node"
kubectl get pod "web-$NODE" >/dev/null || die "the uninstall took the mirror"
of_release() { kubectl get all,configmaps,serviceaccounts,roles,rolebindings,leases -n kube-system -l app.kubernetes.io/instance=mirrorlet -o name; }
nothing_of_release() { local left; left="$(of_release)" && [ -z "$left" ]; }
wait_for 60 "the release's objects to go" nothing_of_release
kubectl delete lease -n kube-system mirrorlet-approver >/dev/null || die "docs/install.md names a Lease that is not there"
node_ready "$OTHER_NODE" || die "the other release is not Ready"
[ "$(owned_by "$OTHER/root" | sort)" = "$theirs" ] || die "the uninstall touched the other release's containers"

step "drained: its pods end, their mirrors go, the manifests stay"
helm upgrade second "$CHART" "${others[@]}" --set drain=true >/dev/null
drained() { [ -z "$(owned_by "$OTHER/root" --all)" ] && ! kubectl get pod "web-$OTHER_NODE" >/dev/null 2>&1; }
wait_for 60 "the other release's pods and mirrors to go" drained
[ -f "$OTHER/manifests/web.yaml" ] || die "a drain took a manifest"
[ "$(owned | sort)" = "$before" ] || die "a drain of one release touched the other's containers"

step "the kubelet's Node and its pod never knew of all that"
node_ready "$HOST_NODE" || die "the kubelet's Node is not Ready"
[ "$(kubectl get pod beside -o 'jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}')" = "Running 0" ] \
    || die "the kubelet's pod is not what it was"
kubectl delete pod beside --timeout=60s >/dev/null

step "as a static pod of a kubelet without an API server"
helm uninstall second --namespace kube-system --wait >/dev/null
others_gone() { [ -z "$(kubectl get pods -n kube-system -l app.kubernetes.io/instance=second -o name)" ]; }
wait_for 60 "the other agent to go" others_gone
cluster_stop kubelet TERM
prepare "$ALONE"
mkdir -p "$ALONE/pods"
sed -e "s|/var/lib/mirrorlet|$ALONE/root|g" -e "s|/etc/mirrorlet/manifests|$ALONE/manifests|g" \
    -e 's|127.0.0.1:10351|127.0.0.1:10395|; s|containerPort: 10351|containerPort: 10395|' \
    -e 's|, mountPropagation: HostToContainer||' "$REPO/manifests/static-pod.yaml" >"$ALONE/pods/mirrorlet.yaml"
kubelet_alone "$ALONE/pods"
manifest web mirrorlet.test/busybox:1 "$ALONE"
alone_runs() { "$BINARY" status --root "$ALONE/root" 2>/dev/null | grep -q -E "^default +web-$HOST_NODE-docker +1/1 +Running"; }
wait_for 120 "the pod of an agent that a kubelet runs alone" alone_runs
"$BINARY" status --root "$ALONE/root"

say ""
say "helm: every step passed"
of_record=""
[ "${IMAGE_LIBRARIES:-}" != 1 ] || of_record=" (of a debug build, with its libraries)"
say "image                                         $image_bytes bytes$of_record"
say "helm install --wait until both Nodes are Ready $installed_ms ms"
say "upgrade: longest time without a manager       $gap_ms ms; containers restarted: 0"
((gap_ms < GAP_MAX_MS)) || say "the gap is more than the $GAP_MAX_MS ms it may be on a machine with nothing else to do"
