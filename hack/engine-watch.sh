#!/usr/bin/env bash
# Watches the Engine of DOCKER_HOST until it is stopped itself. An Engine that answers no more, or that
# starts no container any more, would have each test wait for its deadline and tell nobody why: what it
# waits for is said, from the stacks of its goroutines, and if hack/docker-up.sh started it, it is
# started anew. An Engine of others is left alone.
#
#   hack/engine-watch.sh FILE   what it says is added to FILE, too
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Between two looks.
EVERY_SECONDS=20
# An Engine that takes longer than that, this often in a row, hangs. Two overloaded cores make one that
# lives take seconds.
ANSWER_SECONDS=75
TIMES=2
# How long a report waits for /info, which containerd and the networks have a part in.
INFO_SECONDS=20
# What each look starts: an image of hack/images.sh. hack/left.sh knows the name.
IMAGE=mirrorlet.test/busybox:1
NAME=mirrorlet-engine-watch
# How many kinds of stacks are said, and how deep.
KINDS=15
DEPTH=6
# Functions of the Engine and of containerd, but not of the libraries that come with them.
ENGINE='docker/(docker/[a-uw-z]|libnetwork)'
CONTAINERD='containerd/containerd/(v2/|[a-uw-z])'

[ "$#" = 1 ] || die "usage: hack/engine-watch.sh FILE"
said="$1"
pidfile="$DEV_DIR/dockerd.pid"

# limited SECONDS COMMAND…: status 124 where it takes longer.
limited() {
    local status=0
    timeout --kill-after 5 "$@" || status=$?
    [ "$status" != 137 ] || status=124
    return "$status"
}
# containerd_of PID: the one that this dockerd started; nothing where it uses another one.
containerd_of() { pgrep -x -P "$1" containerd || true; }
# A list comes from the Engine's memory, and an Engine whose starts all wait for one lock still answers
# with it: a container is started, too. One that can't be had is not one that hangs.
look() {
    limited "$ANSWER_SECONDS" docker ps --all --quiet >/dev/null || return 1
    local status=0
    {
        # The one of a look that was cut off.
        limited "$ANSWER_SECONDS" docker rm --force "$NAME" || [ "$?" != 124 ] || return 1
        limited "$ANSWER_SECONDS" docker run --detach --rm --pull never --name "$NAME" "$IMAGE" true || status=$?
    } >/dev/null 2>&1
    [ "$status" != 124 ]
}

# stacks FILE CODE: the goroutines that have waited for a minute and more, by what they wait in and for
# whom in functions like CODE, most first.
stacks() {
    awk -v depth="$DEPTH" -v code="$2" '
        /^goroutine / { waits = / minutes\]/; kind = ""; frames = 0; ours = 0; next }
        /^$/ { if (waits && ours) count[kind]++; waits = 0; next }
        waits && /^[^\t ]/ && !/^created by/ {
            found = $0 ~ code
            if ((found || frames == 0) && frames < depth) {
                frames++; ours += found; sub(/\([^()]*\)$/, ""); kind = kind " < " $0
            }
        }
        END { for (kind in count) print count[kind] kind }' "$1" \
        | sed -E 's,github.com/(docker|containerd)/,,g' | sort -rn | sed -n "1,${KINDS}p"
}

# Whether /info answers. The list of containers is from the Engine's memory; this is not.
info() {
    local status=0
    limited "$INFO_SECONDS" docker info --format '{{.ID}}' >/dev/null 2>&1 || status=$?
    case "$status" in
    0) echo "/info answers" ;;
    124) echo "/info does not answer within $INFO_SECONDS s" ;;
    *) echo "/info fails" ;;
    esac
}

# written_by DOCKERD CONTAINERD: what both wait for, in their own words. dockerd writes all stacks into a
# file below its directory of state, containerd into one for temporary files.
written_by() {
    local dump dir name="containerd.$2.stacks.log"
    kill -USR1 "$1" || true
    [ -z "$2" ] || kill -USR1 "$2" || true
    sleep 5
    dump="$(find /var/run/docker -maxdepth 1 -name 'goroutine-stacks-*' -newer "$pidfile" -print 2>/dev/null | sort | tail -n 1)"
    if [ -n "$dump" ]; then stacks "$dump" "$ENGINE"; else echo "it wrote no stacks"; fi
    [ -n "$2" ] || { echo "it started no containerd"; return; }
    echo "its containerd:"
    ps -o stat=,wchan:24=,args= -p "$2" | cut -c 1-160
    for dir in /tmp "${TMPDIR:-/tmp}"; do
        [ -e "$dir/$name" ] || continue
        stacks "$dir/$name" "$CONTAINERD"
        mv -f "$dir/$name" "$DEV_DIR/containerd-stacks.log"
        return
    done
    echo "it wrote no stacks"
}

report() {
    local pid="$1"
    printf '== The Engine has not answered, or started no container, for %s s\n' "$((ANSWER_SECONDS * TIMES))"
    uptime
    free -m | sed -n 2p
    df -h /var/lib/docker "${TMPDIR:-/tmp}" 2>/dev/null | sed 1d
    ps -e -o pcpu=,rss=,stat=,args= --sort -pcpu | cut -c 1-120 | sed -n 1,8p
    # Who waits in the kernel, and the Engine's helpers that should have ended long ago.
    ps -e -o stat=,etimes=,wchan:24=,args= \
        | awk '$1 ~ /^D/ || ($2 > 60 && $4 ~ /(runc|iptables|ip6tables)$/) { print substr($0, 1, 160) }' | sed -n 1,20p
    dmesg 2>/dev/null | grep -i -E 'out of memory|oom-kill|waiting for .* to become free|blocked for more than' \
        | tail -n 5 || true
    info
    [ -n "$pid" ] || { echo "it is not one that hack/docker-up.sh started"; return; }
    written_by "$pid" "$(containerd_of "$pid")"
    tail -n 15 "$DEV_DIR/dockerd.log"
}

missed=0
while sleep "$EVERY_SECONDS"; do
    if look; then
        missed=0
        continue
    fi
    missed=$((missed + 1))
    [ "$missed" -ge "$TIMES" ] || continue
    missed=0
    pid="$(cat "$pidfile" 2>/dev/null || true)"
    { [ -n "$pid" ] && is_alive dockerd "$pid"; } || pid=""
    # A part of it that can't be had doesn't end the watch.
    report "$pid" 2>&1 | tee -a "$said" >&2 || true
    [ -n "$pid" ] || continue
    say "starting the Engine anew …"
    # A containerd that outlives its dockerd is taken over by the next one, as it is.
    containerd="$(containerd_of "$pid")"
    "$REPO/hack/docker-down.sh" || kill -KILL "$pid" ${containerd:+"$containerd"} || true
    rm -f "$pidfile"
    # As `make test` has it started.
    # shellcheck disable=SC2086
    env ${TESTS_GO:-} "$REPO/hack/docker-up.sh" || true
done
