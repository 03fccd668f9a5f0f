#!/usr/bin/env bash
# Makes sure that a Docker Engine answers. Does nothing when one does; else installs what is
# missing and starts dockerd. `hack/docker-down.sh` stops what this started, and nothing else.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

START_SECONDS=60

if engine_answers; then
    exit 0
fi

case "${DOCKER_HOST:-}" in
"" | unix:///var/run/docker.sock | unix:///run/docker.sock) ;;
*) die "no Docker Engine answers at DOCKER_HOST=$DOCKER_HOST; start it, or unset DOCKER_HOST to use one of this machine" ;;
esac

# Debian puts daemons and iptables where a user's PATH may not look.
export PATH="$PATH:/usr/sbin:/sbin"
# nft is for hack/left.sh and the reaper of the tests, which do without it as well.
need dockerd docker.io iptables nftables
# Part of docker.io up to Debian 12, a package of its own after.
need docker docker-cli
need iptables iptables

# Installing the package may have started the service.
if [ -d /run/systemd/system ]; then
    say "starting docker.service …"
    systemctl start docker.service || true
    if wait_for 10 "docker.service to answer" engine_answers; then
        exit 0
    fi
    die "docker.service doesn't answer; see: journalctl -u docker.service"
fi

[ "$(id -u)" = 0 ] || die "no Docker Engine answers and dockerd needs root; run this as root, or start Docker"

mkdir -p "$DEV_DIR"
pidfile="$DEV_DIR/dockerd.pid"
log="$DEV_DIR/dockerd.log"

# A dockerd that was killed leaves the pid of its containerd behind, and the next one waits for
# that one's socket in vain.
forget_dead_containerd() {
    local dir=/var/run/docker/containerd pid
    pid="$(cat "$dir/containerd.pid" 2>/dev/null)" || return 0
    is_alive containerd "$pid" || rm -f "$dir/containerd.pid" "$dir"/containerd*.sock*
}

# A dockerd that is still coming up, or hangs, is nobody's to start twice.
runs_still() { [ -s "$pidfile" ] && is_alive dockerd "$(cat "$pidfile")"; }
if runs_still; then
    say "dockerd (pid $(cat "$pidfile")) runs but doesn't answer yet; waiting up to $START_SECONDS s …"
else
    say "starting dockerd, log in $log …"
    rm -f "$pidfile"
    forget_dead_containerd
    # No descriptor of ours may stay open in it, or a caller reading our output would never end.
    setsid nohup dockerd --pidfile "$pidfile" >"$log" 2>&1 </dev/null &
    started=$!
    answers_or_dead() { engine_answers || ! kill -0 "$started" 2>/dev/null; }
    wait_for "$START_SECONDS" "dockerd to answer" answers_or_dead || { tail -n 30 "$log" >&2; exit 1; }
    kill -0 "$started" 2>/dev/null || { tail -n 30 "$log" >&2; die "dockerd ended at once; whole log: $log"; }
fi

wait_for "$START_SECONDS" "dockerd to answer" engine_answers || { tail -n 30 "$log" >&2; exit 1; }
say "Docker Engine $(docker version --format '{{.Server.Version}}, API {{.Server.APIVersion}}') answers"
