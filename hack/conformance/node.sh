#!/usr/bin/env bash
# Kubernetes' second judgement: the specs labelled [NodeConformance] of test/e2e_node, which judge a
# kubelet on its own machine, mirror pods and static pods among them. They run against an agent that
# is the only Node of a real API server, on the Engine of DOCKER_HOST. Prints the score, the areas and
# the specs that failed.
#
#   hack/conformance/node.sh
#
# JUDGED=kubelet judges a kubelet on Debian's containerd instead, the same way: what the agent's score
# is compared with.
#
# FOCUS, SKIP: regular expressions. SERIAL=1 runs those that want the machine for themselves, too,
# SERIAL=only these alone; systemctl, with which the suite restarts a kubelet, is a stand-in for them.
# PROCS: specs at a time (4). OUT: where reports and logs go. MIRRORLET: the binary to judge, instead
# of building one.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

SERIAL="${SERIAL:-0}"
focus='\[NodeConformance\]'
alone='(\[Serial\]|\[Disruptive\])'
[ "$SERIAL" != only ] || focus="$alone.*$focus|$focus.*$alone"
FOCUS="${FOCUS:-$focus}"
SKIP="${SKIP:-}"
PROCS="${PROCS:-4}"
# Longest time that the specs may take altogether.
TIMEOUT="${TIMEOUT:-2h}"
JUDGED="${JUDGED:-mirrorlet}"
case "$JUDGED" in
mirrorlet) OUT="${OUT:-$REPO/target/conformance-node}" ;;
kubelet) OUT="${OUT:-$REPO/target/conformance-node-kubelet}" ;;
*) die "JUDGED=$JUDGED: it is mirrorlet or kubelet" ;;
esac
here="$REPO/hack/conformance"

need python3 python3
[ "$SERIAL" != 0 ] || SKIP="${SKIP:+$SKIP|}$alone"

"$REPO/hack/kube-build.sh" agnhost ginkgo e2e_node.test etcd
[ "$JUDGED" = mirrorlet ] || "$REPO/hack/kube-build.sh" kubelet
"$here/images.sh"

# shellcheck source=hack/conformance/bed.sh
. "$here/bed.sh"
# Two specs read a log where a kubelet has it.
LOGS=(/var/log/pods /var/log/containers)
made=()
for directory in "${LOGS[@]}"; do
    [ -e "$directory" ] || made+=("$directory")
done
# A spec writes the node's registry credentials where a kubelet has them.
CREDENTIALS=/var/lib/kubelet
[ -e "$CREDENTIALS" ] || made+=("$CREDENTIALS")
agent_arguments=(--pod-logs-dir "${LOGS[0]}" --docker-config "$CREDENTIALS")
# The suite asks for a kubelet's health there.
metrics_address=127.0.0.1:10248
clean_up_more() {
    bed_down
    # Links to files of containers that are gone.
    [ "${#made[@]}" = 0 ] || rm -rf "${made[@]}"
}
mkdir -p "$CREDENTIALS"
# The suite makes pods at once in namespaces that are new, and knows the API server by a bearer token.
token="$(openssl rand -hex 16)"
printf '%s,admin,admin,system:masters\n' "$token" >"$root/tokens.csv"
# Debian's etcd can't say how far a watch has come. The API server then ends a watch that begins when no
# pod has changed for a while, after three seconds and without an error; one spec hangs over that.
CLUSTER_ETCD_PROGRAM="$KUBE_BIN/etcd"
CLUSTER_API_ARGUMENTS=(--disable-admission-plugins=ServiceAccount --token-auth-file="$root/tokens.csv")
endpoint=unix:///none
if [ "$JUDGED" = kubelet ]; then
    "$REPO/hack/images.sh"
    endpoint="unix://$CLUSTER_DIR/containerd.sock"
    mapfile -t images < <(docker image ls --format '{{.Repository}}:{{.Tag}}' --filter 'reference=registry.k8s.io/*' \
        --filter 'reference=registry.k8s.io/*/*')
    bed_up_kubelet "${images[@]}"
else
    bed_up
fi
bed_registry registry.k8s.io/e2e-test-images/{agnhost:2.59,busybox:1.37.0-1}

say "running the specs that match $FOCUS${SKIP:+, without $SKIP}; log in $OUT/e2e.log …"
bed_judge e2e_node.test --start-services=false --stop-services=false --prepull-images=false \
    --node-name="$NODE" --host="https://$CLUSTER_ADDRESS:443" --bearer-token="$token" \
    --dns-domain=cluster.local --container-runtime-endpoint="$endpoint"
"$here/table.py" --areas "$OUT/junit.xml"
