#!/usr/bin/env bash
# Makes sure that a current Docker Engine with its containerd image store runs beside the machine's
# own: own directories, sockets and bridge. Prints its address. `hack/engine29-down.sh` stops it.
#
#   export DOCKER_HOST="$(hack/engine29-up.sh)"
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

START_SECONDS=60
BRIDGE=mlt29
SUBNET=172.29.0.1/16

hack="$(dirname "${BASH_SOURCE[0]}")"
"$hack/engine29-build.sh"
[ "$(id -u)" = 0 ] || die "dockerd needs root; run this as root"
need iptables iptables
need docker docker.io
need ip iproute2

dir="$DEV_DIR/engine29"
export DOCKER_HOST="unix://$dir/docker.sock"
export PATH="$ENGINE29_BIN:$PATH:/usr/sbin:/sbin"

if engine_answers; then
    printf '%s\n' "$DOCKER_HOST"
    exit 0
fi
mkdir -p "$dir"

# begin NAME COMMAND…: starts a daemon whose pid is kept in $dir/NAME.pid.
begin() {
    local name="$1" pidfile="$dir/$1.pid"
    shift
    if [ -s "$pidfile" ] && is_alive "$name" "$(cat "$pidfile")"; then
        return 0
    fi
    say "starting $name $ENGINE29_VERSION, log in $dir/$name.log …"
    rm -f "$dir/$name.sock"
    # No descriptor of ours may stay open in it, or a caller reading our output would never end.
    setsid nohup "$@" >"$dir/$name.log" 2>&1 </dev/null &
    printf '%s\n' "$!" >"$pidfile"
}
failed() { tail -n 30 "$dir/$1.log" >&2; exit 1; }

cat >"$dir/containerd.toml" <<TOML
version = 3
root = "$dir/containerd-data"
state = "$dir/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
address = "$dir/containerd.sock"
[ttrpc]
address = "$dir/containerd.sock.ttrpc"
TOML
begin containerd "$ENGINE29_BIN/containerd" --config "$dir/containerd.toml"
wait_for "$START_SECONDS" "containerd to listen" test -S "$dir/containerd.sock" || failed containerd

if ! ip link show "$BRIDGE" >/dev/null 2>&1; then
    ip link add "$BRIDGE" type bridge
    ip addr add "$SUBNET" dev "$BRIDGE"
fi
ip link set "$BRIDGE" up
printf '{}\n' >"$dir/daemon.json"
begin dockerd "$ENGINE29_BIN/dockerd" --config-file "$dir/daemon.json" --host "$DOCKER_HOST" \
    --containerd "$dir/containerd.sock" --data-root "$dir/data" --exec-root "$dir/exec" \
    --pidfile "$dir/dockerd-own.pid" --bridge "$BRIDGE" --userland-proxy-path "$ENGINE29_BIN/docker-proxy"
wait_for "$START_SECONDS" "dockerd to answer" engine_answers || failed dockerd
say "Docker Engine $(docker version --format '{{.Server.Version}}, API {{.Server.APIVersion}}') answers"
printf '%s\n' "$DOCKER_HOST"
