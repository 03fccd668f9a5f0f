# Sourced after lib.sh by the scripts that run Docker Compose beside mirrorlet: a machine of their own, in
# network, mount and process namespaces that end with the script and take all that it started with them.
# In it: a Docker Engine, a registry at localhost:5000, the tests' images, an agent, and nothing else. Not
# to be run.
#
# MIRRORLET: the binary to use, instead of building one.
# MACHINE_BARE=true, set before it is sourced: without Compose and the registry.
# shellcheck shell=bash

# Bounds in seconds: many times what a step takes on a slow machine.
START_SECONDS=60
STOP_SECONDS=30

if [ -z "${MACHINE:-}" ]; then
    [ "$(id -u)" = 0 ] || die "dockerd needs root; run this as root"
    export PATH="$PATH:/usr/sbin:/sbin"
    need unshare util-linux
    need ip iproute2
    need jq jq
    need dockerd docker.io iptables
    need docker docker-cli
    need curl curl
    "$REPO/hack/images.sh" --tools
    if [ "${MACHINE_BARE:-false}" = false ]; then
        "$REPO/hack/registry.sh"
        "$REPO/hack/compose-build.sh" >/dev/null
    fi
    if [ -z "${MIRRORLET:-}" ]; then
        say "building mirrorlet (the first time takes some minutes) …"
        (cd "$REPO" && cargo build --locked --bin mirrorlet)
        MIRRORLET="${CARGO_TARGET_DIR:-$REPO/target}/debug/mirrorlet"
    fi
    [ -x "$MIRRORLET" ] || die "no binary at $MIRRORLET"
    MIRRORLET="$(realpath "$MIRRORLET")"
    MACHINE="$(mktemp -d "${TMPDIR:-/tmp}/mirrorlet-machine.XXXXXX")"
    export MIRRORLET MACHINE
    inner=""
    # The end of unshare is that of all its processes.
    leave_machine() {
        local code=$?
        trap - EXIT INT TERM
        set +e
        [ -z "$inner" ] || { kill -KILL "$inner" && wait "$inner"; } 2>/dev/null
        no_processes() { [ -z "$(find /sys/fs/cgroup -path "*/${MACHINE##*/}/*" -name cgroup.procs -exec cat {} + 2>/dev/null)" ]; }
        wait_for "$STOP_SECONDS" "the containers to end" no_processes
        find /sys/fs/cgroup -depth -type d -path "*/${MACHINE##*/}*" -exec rmdir {} + 2>/dev/null
        rm -rf "$MACHINE"
        exit "$code"
    }
    trap leave_machine EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@" &
    inner=$!
    code=0
    wait "$inner" || code=$?
    inner=""
    exit "$code"
fi

# ---- inside ---------------------------------------------------------------------------------

export DOCKER_HOST="unix://$MACHINE/docker.sock"
# The paths that documents name, without a trace on the machine.
for dir in /etc /var/lib; do
    mkdir -p "$MACHINE/over$dir/upper" "$MACHINE/over$dir/work"
    mount -t overlay -o "lowerdir=$dir,upperdir=$MACHINE/over$dir/upper,workdir=$MACHINE/over$dir/work" overlay "$dir"
done
mkdir -p /etc/mirrorlet /var/lib/mirrorlet
for dir in /etc/mirrorlet /var/lib/mirrorlet /srv; do mount -t tmpfs -o mode=0755 machine "$dir"; done
mkdir /etc/mirrorlet/manifests
ip link set lo up

# begin NAME COMMAND…: starts a program; its pid is in $pid.
begin() {
    local name="$1"
    shift
    setsid "$@" >>"$MACHINE/$name.log" 2>&1 </dev/null &
    pid=$!
}
# end PID SIGNAL: ends it, and waits for that.
end() {
    kill "-$2" "$1"
    wait "$1" 2>/dev/null || true
}
start_engine() {
    printf '{}\n' >"$MACHINE/daemon.json"
    begin dockerd dockerd --config-file "$MACHINE/daemon.json" --host "$DOCKER_HOST" --data-root "$MACHINE/docker" \
        --exec-root "$MACHINE/exec" --pidfile "$MACHINE/dockerd.pid" --cgroup-parent "/${MACHINE##*/}"
    engine="$pid"
    wait_for "$START_SECONDS" "dockerd to answer" engine_answers || { tail -n 20 "$MACHINE/dockerd.log" >&2; exit 1; }
}
build_images() {
    "$REPO/hack/images.sh" 2>"$MACHINE/images.log" || { tail -n 20 "$MACHINE/images.log" >&2; die "the images could not be built"; }
}
listens() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
# start_registry PORT [CONFIG]
start_registry() {
    mkdir -p "$MACHINE/registry-$1"
    printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "127.0.0.1:%s"}\n%s\n' \
        "$MACHINE/registry-$1/data" "$1" "${2:-}" >"$MACHINE/registry-$1/config.yml"
    begin "registry-$1" docker-registry serve "$MACHINE/registry-$1/config.yml"
    wait_for "$START_SECONDS" "the registry to listen" listens "$1"
}
start_agent() {
    begin agent "$MIRRORLET" run --manifests /etc/mirrorlet/manifests --node-name box --eviction-hard none
    agent="$pid"
    answers() { "$MIRRORLET" status >/dev/null 2>&1; }
    wait_for "$START_SECONDS" "the agent to answer" answers || { tail -n 20 "$MACHINE/agent.log" >&2; exit 1; }
}

# Commands that a user types.
mkdir "$MACHINE/bin"
ln -s "$MIRRORLET" "$MACHINE/bin/mirrorlet"
cat >"$MACHINE/bin/docker" <<END
#!/bin/sh
if [ "\$1" = compose ]; then shift; exec "$COMPOSE" "\$@"; fi
exec "$(command -v docker)" "\$@"
END
chmod 755 "$MACHINE/bin/docker"
export PATH="$MACHINE/bin:$PATH"

start_engine
if [ "${MACHINE_BARE:-false}" = false ]; then
    build_images
    start_registry 5000
fi
