# Sourced after cluster.sh: a real kubelet on a containerd of its own, as a Node of that cluster.
# Not to be run.
# shellcheck shell=bash

HOST_NODE="${HOST_NODE:-host1}"
# More lines of the kubelet's configuration.
HOST_SETTINGS=()
# What kubelet_up ran it with.
HOST_COMMAND=()
# An image that only waits, for the sandboxes of the kubelet's pods.
HOST_SANDBOX_IMAGE=mirrorlet.test/user-root:1
# The pods' network of that Node: a bridge of this machine. The block is set aside for benchmarks
# (RFC 2544), as the cluster's own is.
HOST_BRIDGE=mirrorlet-host1
HOST_PODS="198.19.$CLUSTER_NUMBER.0/24"
# Debian's plugins; what they keep of each pod while it is there.
HOST_PLUGINS=/usr/lib/cni
HOST_PLUGIN_RESULTS=/var/lib/cni/results

# ctr of the kubelet's containerd, in the kubelet's name space.
host_ctr() { ctr --address "$CLUSTER_DIR/containerd.sock" --namespace k8s.io "$@"; }

# host_images IMAGE…: gives it these images of the Engine.
host_images() { docker save "$@" | host_ctr images import - >/dev/null; }

host_idle() { [ -z "$(host_ctr tasks list --quiet 2>/dev/null)" ]; }
host_registered() { kubectl get node "$HOST_NODE" >/dev/null 2>&1; }

# Between its pods: Docker has the firewall drop what it doesn't know of.
HOST_RULE=(FORWARD --in-interface "$HOST_BRIDGE" --out-interface "$HOST_BRIDGE" --jump ACCEPT)

# kubelet_up: starts containerd and kubelet, and waits until the Node is registered. It gets Ready:
# its pods have a network.
kubelet_up() {
    local state="$CLUSTER_DIR/containerd" network="$CLUSTER_DIR/network"
    need containerd containerd
    need "$HOST_PLUGINS/bridge" containernetworking-plugins
    mkdir -p "$state" "$CLUSTER_DIR/kubelet" "$network"
    iptables --wait --insert "${HOST_RULE[@]}"
    cat >"$network/10-$HOST_BRIDGE.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "$HOST_BRIDGE", "plugins": [{
  "type": "bridge", "bridge": "$HOST_BRIDGE", "isGateway": true, "ipMasq": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$HOST_PODS"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$network/addresses"}
}]}
JSON
    cat >"$CLUSTER_DIR/containerd.toml" <<TOML
version = 2
root = "$state/root"
state = "$state/state"
[grpc]
  address = "$CLUSTER_DIR/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$HOST_SANDBOX_IMAGE"
  stream_server_address = "127.0.0.1"
  # This machine may not give a process a score below its own.
  restrict_oom_score_adj = true
  # So that they are found again, and taken away.
  netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".registry]
  # The Engine's: of which registries it trusts the certificate.
  config_path = "/etc/docker/certs.d"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "$HOST_PLUGINS"
  conf_dir = "$network"
TOML
    cluster_program "$(command -v containerd)" --config "$CLUSTER_DIR/containerd.toml"
    wait_for 30 "containerd to listen" test -S "$CLUSTER_DIR/containerd.sock"
    host_images "$HOST_SANDBOX_IMAGE"

    cat >"$CLUSTER_DIR/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
containerRuntimeEndpoint: unix://$CLUSTER_DIR/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $CLUSTER_DIR/pki/ca.crt}}
authorization: {mode: Webhook}
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
YAML
    [ "${#HOST_SETTINGS[@]}" = 0 ] || printf '%s\n' "${HOST_SETTINGS[@]}" >>"$CLUSTER_DIR/kubelet.yaml"
    HOST_COMMAND=("$KUBE_BIN/kubelet" --config "$CLUSTER_DIR/kubelet.yaml" --hostname-override "$HOST_NODE"
        --root-dir "$CLUSTER_DIR/kubelet" --kubeconfig "$(cluster_node_kubeconfig "$HOST_NODE")")
    cluster_program "${HOST_COMMAND[@]}"
    wait_for 60 "the kubelet to register its Node" host_registered
}

# kubelet_alone PODS: starts a kubelet that knows no API server and runs the manifests in PODS.
kubelet_alone() {
    sed -e '/^authentication:/d' -e '/^authorization:/d' "$CLUSTER_DIR/kubelet.yaml" >"$CLUSTER_DIR/kubelet-alone.yaml"
    cat >>"$CLUSTER_DIR/kubelet-alone.yaml" <<YAML
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
enableServer: false
staticPodPath: $1
fileCheckFrequency: 1s
YAML
    cluster_program "$KUBE_BIN/kubelet" --config "$CLUSTER_DIR/kubelet-alone.yaml" --hostname-override "$HOST_NODE" \
        --root-dir "$CLUSTER_DIR/kubelet"
}

# kubelet_down: ends what kubelet_up started, its pods included, and takes away what they had.
kubelet_down() {
    local id point
    cluster_stop kubelet TERM
    if cluster_runs containerd; then
        for id in $(host_ctr tasks list --quiet 2>/dev/null); do
            host_ctr tasks kill --signal KILL "$id" >/dev/null 2>&1 || true
        done
        # It buries them, and lets go of what they had mounted.
        wait_for 30 "the kubelet's pods to end" host_idle || true
    fi
    cluster_stop containerd TERM
    # Volumes, shared memory, and network namespaces, with which the bridge's ends go.
    for point in $(awk -v a="$CLUSTER_DIR/containerd/" -v b="$CLUSTER_DIR/kubelet" \
        'index($5, a) == 1 || index($5, b) == 1 { print $5 }' /proc/self/mountinfo | sort -r); do
        umount "$point"
    done
    ip link delete "$HOST_BRIDGE" 2>/dev/null || true
    iptables --wait --delete "${HOST_RULE[@]}" 2>/dev/null || true
    rm -rf "$CLUSTER_DIR/network" "$HOST_PLUGIN_RESULTS/$HOST_BRIDGE"-*
}
