# Sourced after lib.sh by the scripts that have Kubernetes judge a Node: a control plane, the agent as
# its only Node, or a kubelet. Not to be run. Set before: OUT, FOCUS, SKIP, PROCS, TIMEOUT.
# shellcheck shell=bash

NODE=conformance
# shellcheck source=hack/demo-lib.sh
. "$REPO/hack/demo-lib.sh"
root_in_memory
CLUSTER_DIR="$root/cluster"
# The demo's: both don't run at once.
CLUSTER_NUMBER=254
# shellcheck source=hack/cluster.sh
. "$REPO/hack/cluster.sh"

HOST_NODE="$NODE"
# shellcheck source=hack/kubelet.sh
. "$REPO/hack/kubelet.sh"

# bed_up: the control plane, then the agent with agent_arguments, until its Node is Ready.
bed_up() {
    bed_cluster
    bed_agent
    bed_ready
}
bed_cluster() {
    mkdir -p "$OUT" "$manifests"
    say "bringing up Kubernetes $KUBE_VERSION …"
    cluster_up
}
# bed_up_kubelet IMAGE…: the same with a kubelet in place of the agent, which has these images.
bed_up_kubelet() {
    bed_cluster
    HOST_SETTINGS+=("staticPodPath: $manifests" "clusterDomain: cluster.local")
    kubelet_up
    bed_unit "$CLUSTER_DIR/kubelet.pid" "$CLUSTER_DIR/kubelet.log" "$CLUSTER_DIR/kubelet.yaml" "${HOST_COMMAND[@]}"
    host_images "$@"
    bed_ready
}
bed_agent() {
    local bridge node_ip
    # The API server asks the Node there for logs and streams. The bridge knows its address always,
    # the Engine not before its second start.
    bridge="$(docker network inspect bridge --format '{{index .Options "com.docker.network.bridge.name"}}')"
    node_ip="$(ip -4 -o addr show "$bridge" | awk '{ sub("/.*", "", $4); print $4; exit }')"
    [ -n "$node_ip" ] || die "the Engine's bridge ${bridge:-of no name} has no address"
    agent_arguments+=(--kubeconfig "$(cluster_node_kubeconfig "$NODE")" --register-with-taints none --image-gc off
        --node-ip "$node_ip" --client-ca-file "$CLUSTER_DIR/pki/ca.crt")
    # shellcheck disable=SC2206 # words
    agent_arguments+=(${AGENT_ARGUMENTS:-})
    start_agent
    echo "$agent" >"$root/agent.pid"
    bed_unit "$root/agent.pid" "$log" "" "${agent_command[@]}"
}
bed_ready() {
    local pressure
    kubectl wait --for=create "node/$NODE" --timeout="${START_SECONDS}s" >/dev/null
    kubectl wait --for=condition=Ready "node/$NODE" --timeout="${START_SECONDS}s" >/dev/null
    # Nothing would be scheduled, and the specs wait for it in vain for very long.
    for pressure in DiskPressure MemoryPressure PIDPressure; do
        [ "$(kubectl get node "$NODE" --output "jsonpath={.status.conditions[?(@.type==\"$pressure\")].status}")" = False ] \
            || die "the Node has $pressure: $(kubectl get node "$NODE" --output "jsonpath={.status.conditions[?(@.type==\"$pressure\")].message}")"
    done
}

# bed_unit PID LOG CONFIG COMMAND…: lets the suite stop and restart the judged program, by sudo and
# systemctl that stand first in PATH. CONFIG is the program's, empty if it takes none of the suite's.
bed_unit() {
    export JUDGED="$root/judged"
    mkdir -p "$JUDGED/bin"
    ln -s "$1" "$JUDGED/pid"
    ln -s "$2" "$JUDGED/log"
    [ -z "$3" ] || ln -s "$3" "$JUDGED/config"
    ln -s "$OUT/kubelet-config" "$JUDGED/written"
    rm -f "$OUT/kubelet-config"
    shift 3
    printf '%q ' "$@" >"$JUDGED/command"
    printf '#!/bin/sh\nexec "$@"\n' >"$JUDGED/bin/sudo"
    chmod 755 "$JUDGED/bin/sudo"
    ln -s "$REPO/hack/conformance/systemctl" "$JUDGED/bin/systemctl"
    export PATH="$JUDGED/bin:$PATH"
}
# The agent is another process after a restart.
agent_alive() {
    [ ! -s "$root/agent.pid" ] || agent="$(cat "$root/agent.pid")"
    [ -n "$agent" ] && kill -0 "$agent" 2>/dev/null
}

registry=""
registry_answers() {
    curl --silent --insecure --output /dev/null --resolve registry.k8s.io:443:127.0.0.1 https://registry.k8s.io/v2/ \
        || ! kill -0 "$registry" 2>/dev/null
}
# bed_registry IMAGE…: a registry.k8s.io on this machine that has these, for specs that pull.
bed_registry() {
    "$REPO/hack/conformance/registry.py" "$@" >"$OUT/registry.log" 2>&1 &
    registry=$!
    wait_for 60 "the registry to answer" registry_answers
    kill -0 "$registry" 2>/dev/null || { cat "$OUT/registry.log" >&2; die "the registry ended at once"; }
}

# Ends what bed_up and bed_registry began, and keeps the agent's log.
bed_down() {
    export PATH="$PATH:/usr/sbin:/sbin"
    [ -z "$registry" ] || kill -TERM "$registry" 2>/dev/null
    cp "$log" "$OUT/agent.log" 2>/dev/null
    if cluster_runs containerd; then
        cp "$CLUSTER_DIR/kubelet.log" "$OUT/"
        kubelet_down
    fi
    cluster_down
}

# shellcheck source=hack/conformance/judge.sh
. "$REPO/hack/conformance/judge.sh"

# bed_judge PROGRAM ARGUMENT…: judge, and a line about the Node.
bed_judge() {
    judge "$@"
    printf 'Node %s\n' \
        "$(kubectl get node "$NODE" --output 'jsonpath={.status.nodeInfo.kubeletVersion}, {.status.nodeInfo.containerRuntimeVersion}')"
}
