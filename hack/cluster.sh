# Sourced after lib.sh by the scripts that need a Kubernetes control plane: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, as processes of this machine. Not to be run.
# shellcheck shell=bash

# Where the cluster keeps certificates, kubeconfigs, data, logs and pid files.
CLUSTER_DIR="${CLUSTER_DIR:-$DEV_DIR/cluster}"
# Third byte of the cluster's addresses; the tests' clusters have 0 to 253, the demo's has 254.
CLUSTER_NUMBER="${CLUSTER_NUMBER:-255}"
# First address of the range of Service addresses, hence the ClusterIP of Service `kubernetes`, port
# 443: the API server listens just there, on lo, and a container finds it as in any cluster,
# although there is no kube-proxy. The block is set aside for benchmarks (RFC 2544).
CLUSTER_ADDRESS="198.18.$CLUSTER_NUMBER.1"
# etcd's: no container reaches it.
CLUSTER_ETCD="127.18.$CLUSTER_NUMBER.1"
# Its etcd; empty is Debian's.
CLUSTER_ETCD_PROGRAM=""
# More arguments of its API server.
CLUSTER_API_ARGUMENTS=()
CLUSTER_START_SECONDS=120
CLUSTER_STOP_SECONDS=30
# Longest wait for another script that has a cluster on the same addresses.
CLUSTER_LOCK_SECONDS=3600

# The right kubectl, as administrator.
kubectl() { "$KUBE_BIN/kubectl" --kubeconfig "$CLUSTER_DIR/admin.kubeconfig" "$@"; }

# ---- certificates -----------------------------------------------------------------------------

# cluster_certificate NAME SUBJECT USAGE [SAN]: <dir>/pki/NAME.{key,crt}, unless they are there.
cluster_certificate() {
    local pki="$CLUSTER_DIR/pki" name="$1" extensions
    [ ! -s "$pki/$name.crt" ] || return 0
    extensions="extendedKeyUsage=$3"
    [ -z "${4:-}" ] || extensions+=$'\n'"subjectAltName=$4"
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
        -keyout "$pki/$name.key" -subj "$2" 2>/dev/null \
        | openssl x509 -req -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 3650 \
            -extfile <(printf '%s\n' "$extensions") -out "$pki/$name.crt" 2>/dev/null \
        || die "openssl made no certificate for $name"
}

# cluster_kubeconfig NAME USER_JSON: <dir>/NAME.kubeconfig, which names files of pki/.
cluster_kubeconfig() {
    local file="$CLUSTER_DIR/$1.kubeconfig"
    cat >"$file" <<END
apiVersion: v1
kind: Config
clusters:
  - name: mirrorlet-dev
    cluster: {server: "https://$CLUSTER_ADDRESS:443", certificate-authority: "$CLUSTER_DIR/pki/ca.crt"}
users:
  - name: $1
    user: $2
contexts:
  - name: mirrorlet-dev
    context: {cluster: mirrorlet-dev, user: $1}
current-context: mirrorlet-dev
END
}

# cluster_client NAME SUBJECT: a client certificate and its kubeconfig.
cluster_client() {
    cluster_certificate "$1" "$2" clientAuth
    cluster_kubeconfig "$1" "{client-certificate: \"$CLUSTER_DIR/pki/$1.crt\", client-key: \"$CLUSTER_DIR/pki/$1.key\"}"
}

# cluster_node_kubeconfig NODE: prints the path of a kubeconfig of system:node:NODE.
cluster_node_kubeconfig() {
    cluster_client "node-$1" "/O=system:nodes/CN=system:node:$1"
    printf '%s\n' "$CLUSTER_DIR/node-$1.kubeconfig"
}

# cluster_service_account_kubeconfig: prints the path of a kubeconfig of ServiceAccount
# kube-system/mirrorlet, which may do what manifests/rbac.yaml says. Its token lasts a day.
cluster_service_account_kubeconfig() {
    kubectl apply -f "$REPO/manifests/rbac.yaml" >/dev/null
    kubectl create token --namespace kube-system mirrorlet --duration 24h >"$CLUSTER_DIR/pki/service-account.token"
    cluster_kubeconfig service-account "{tokenFile: \"$CLUSTER_DIR/pki/service-account.token\"}"
    printf '%s\n' "$CLUSTER_DIR/service-account.kubeconfig"
}

cluster_pki() {
    local pki="$CLUSTER_DIR/pki" names
    mkdir -p "$pki"
    chmod 700 "$CLUSTER_DIR"
    if [ ! -s "$pki/ca.crt" ]; then
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
            -subj /CN=mirrorlet-dev -addext keyUsage=critical,keyCertSign,cRLSign \
            -keyout "$pki/ca.key" -out "$pki/ca.crt" 2>/dev/null || die "openssl made no authority"
    fi
    if [ ! -s "$pki/sa.pub" ]; then
        openssl ecparam -name prime256v1 -genkey -noout -out "$pki/sa.key"
        openssl ec -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>/dev/null
    fi
    names="IP:$CLUSTER_ADDRESS,IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default"
    names+=",DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    cluster_certificate apiserver /CN=kube-apiserver serverAuth "$names"
    cluster_certificate kubelet-client /O=system:masters/CN=kube-apiserver clientAuth
    cluster_client admin /O=system:masters/CN=admin
    cluster_client kube-controller-manager /CN=system:kube-controller-manager
    cluster_client kube-scheduler /CN=system:kube-scheduler
}

# ---- programs ---------------------------------------------------------------------------------

cluster_pid() { cat "$CLUSTER_DIR/$1.pid" 2>/dev/null; }
cluster_runs() { is_alive "$1" "$(cluster_pid "$1" || echo 0)"; }
cluster_ended() { ! cluster_runs "$1"; }
# Whether it has become the program, or is gone already. For a moment it is setsid, then nohup.
cluster_began() { cluster_runs "$1" || ! kill -0 "$(cluster_pid "$1" || echo 0)" 2>/dev/null; }

# cluster_program PATH ARGUMENTS…: starts it, unless it runs.
cluster_program() {
    local path="$1" name="${1##*/}"
    shift
    ! cluster_runs "$name" || return 0
    # No descriptor of ours may stay open in it, or a caller reading our output would never end.
    # They collect garbage half as often as by default: there is memory, and few processors.
    GOGC="${GOGC:-200}" setsid nohup "$path" "$@" >>"$CLUSTER_DIR/$name.log" 2>&1 </dev/null 8>&- &
    echo $! >"$CLUSTER_DIR/$name.pid"
    disown
    # Who asks whether it ended must not take that moment for its end.
    wait_for 10 "$name to begin" cluster_began "$name"
}

# cluster_stop NAME SIGNAL: ends it by its pid, and waits for that.
cluster_stop() {
    local pid
    if cluster_runs "$1"; then
        pid="$(cluster_pid "$1")"
        kill "-$2" "$pid"
        # An API server waits a minute for requests that go on; what it holds is in etcd.
        wait_for "$CLUSTER_STOP_SECONDS" "$1 to end" cluster_ended "$1" 2>/dev/null || kill -KILL "$pid"
    fi
    rm -f "$CLUSTER_DIR/$1.pid"
}

cluster_apiserver() {
    local pki="$CLUSTER_DIR/pki"
    cluster_program "$KUBE_BIN/kube-apiserver" --etcd-servers="http://$CLUSTER_ETCD:2379" \
        --bind-address="$CLUSTER_ADDRESS" --advertise-address="$CLUSTER_ADDRESS" --secure-port=443 \
        --service-cluster-ip-range="198.18.$CLUSTER_NUMBER.0/24" \
        --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
        --client-ca-file="$pki/ca.crt" --service-account-key-file="$pki/sa.pub" \
        --service-account-signing-key-file="$pki/sa.key" \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
        --kubelet-preferred-address-types=InternalIP --allow-privileged=true "${CLUSTER_API_ARGUMENTS[@]}"
    wait_for "$CLUSTER_START_SECONDS" "kube-apiserver to be ready" cluster_ready_or_ended
    cluster_runs kube-apiserver \
        || { tail -n 20 "$CLUSTER_DIR/kube-apiserver.log" >&2; die "kube-apiserver ended at once"; }
}
cluster_ready() { [ "$(kubectl get --raw /readyz --request-timeout=5s 2>/dev/null)" = ok ]; }
cluster_ready_or_ended() { cluster_ended kube-apiserver || cluster_ready; }
cluster_has_accounts() { kubectl get --namespace default serviceaccount/default configmap/kube-root-ca.crt >/dev/null 2>&1; }

# cluster_up: brings up what doesn't run, and waits until pods can be made.
cluster_up() {
    local pki="$CLUSTER_DIR/pki"
    export PATH="$PATH:/usr/sbin:/sbin"
    [ "$(id -u)" = 0 ] || die "a cluster needs an address on lo and port 443; run this as root"
    need openssl openssl
    need ip iproute2
    mkdir -p "$CLUSTER_DIR" "$DEV_DIR"
    # Held until this script ends.
    exec 8>"$DEV_DIR/cluster-$CLUSTER_NUMBER.lock"
    if ! flock --nonblock 8; then
        say "waiting for another script that has a cluster at $CLUSTER_ADDRESS …"
        flock --wait "$CLUSTER_LOCK_SECONDS" 8 || die "waited $CLUSTER_LOCK_SECONDS s in vain"
    fi
    cluster_pki
    ip -o -4 addr show dev lo | grep -q -F " $CLUSTER_ADDRESS/32 " \
        || ip addr add "$CLUSTER_ADDRESS/32" dev lo label lo:dev
    # A crash of this machine may cost what the cluster has; it is for tests.
    cluster_program "${CLUSTER_ETCD_PROGRAM:-$(command -v etcd)}" --data-dir="$CLUSTER_DIR/etcd" --unsafe-no-fsync \
        --listen-client-urls="http://$CLUSTER_ETCD:2379" --advertise-client-urls="http://$CLUSTER_ETCD:2379" \
        --listen-peer-urls="http://$CLUSTER_ETCD:2380" --initial-advertise-peer-urls="http://$CLUSTER_ETCD:2380" \
        --initial-cluster="default=http://$CLUSTER_ETCD:2380"
    cluster_apiserver
    cluster_program "$KUBE_BIN/kube-controller-manager" --kubeconfig="$CLUSTER_DIR/kube-controller-manager.kubeconfig" \
        --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
        --use-service-account-credentials=true --cluster-signing-cert-file="$pki/ca.crt" \
        --cluster-signing-key-file="$pki/ca.key" --leader-elect=false --secure-port=0
    cluster_program "$KUBE_BIN/kube-scheduler" --kubeconfig="$CLUSTER_DIR/kube-scheduler.kubeconfig" \
        --leader-elect=false --secure-port=0
    wait_for "$CLUSTER_START_SECONDS" "the controller-manager to make service accounts" cluster_has_accounts
}

# cluster_down: ends what cluster_up started, and nothing else; data and certificates stay.
cluster_down() {
    local name
    # The address may be another's until ours was begun.
    [ -d "$CLUSTER_DIR/pki" ] || return 0
    for name in kube-scheduler kube-controller-manager kube-apiserver etcd; do
        cluster_stop "$name" TERM
    done
    ip addr del "$CLUSTER_ADDRESS/32" dev lo 2>/dev/null || true
}
