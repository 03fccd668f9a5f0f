#!/usr/bin/env bash
# Whether tests left anything on this machine: compares what there is with what there was before.
#
#   hack/left.sh before FILE        writes down what there is
#   hack/left.sh after FILE [DIR]   names what is there besides, also in DIR, the TMPDIR that the tests had;
#                                   exit 1 if there is anything
#   hack/left.sh remove DIR         removes such a DIR, and directories of tests whose process has ended
#   hack/left.sh sweep              removes what tests left that were cut off together with their reaper, as
#                                   when the machine went down: directories, mounts, containers, volumes,
#                                   rules of host ports and cgroups
#
# Looked at: containers, networks, volumes and images of the Engine of DOCKER_HOST; mounts, network
# namespaces and interfaces, addresses on lo, rules of host ports where there is nft, cgroups of tests and
# pods; processes of clusters, Engines and agents; directories of ours below $TMPDIR. The sandbox image,
# that of the tests of the Engine's seam and those of the conformance specs stay on purpose. Whatever
# others do on this machine meanwhile is seen, too. Fails if something of that can't be listed, as while the
# Engine is away.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export PATH="$PATH:/usr/sbin:/sbin"

# Longest wait for the reapers of the test programs, which work after these have ended.
REAPERS_SECONDS=120

case "$#${1-}" in
2before | 2after | 3after | 2remove | 1sweep) ;;
*) die "usage: hack/left.sh before FILE, after FILE [DIR], remove DIR, or sweep" ;;
esac

reapers_ended() { ! pgrep -f 'mirrorlet-reaper$' >/dev/null; }

# As grep, and also succeeds where no line is selected.
lines() { grep "$@" || [ "$?" = 1 ]; }

# One a line, each with its kind. Fails if something can't be listed: not for a condition, nor in a process
# substitution, where bash ignores that.
there_is() {
    # That of hack/engine-watch.sh goes by itself.
    docker ps --all --format 'container {{.Names}}' | lines -v -x 'container mirrorlet-engine-watch'
    docker network ls --format 'network {{.Name}}'
    docker volume ls --format 'volume {{.Name}}'
    docker images --format 'image {{.Repository}}:{{.Tag}}' | lines -v -E '^image (mirrorlet/pause:|mirrorlet-test/engine-busybox:|registry\.k8s\.io/)'
    # Those of the Engine's containers come and go with them.
    awk '$2 !~ "/(docker|containerd|netns)/" { print "mount " $2 }' /proc/self/mounts
    ip netns list 2>/dev/null | awk '{ print "netns " $1 }'
    ip -o link | awk -F ': ' '$2 !~ /^veth/ { print "interface " $2 }'
    ip -o -4 addr show dev lo | awk '{ print "address " $4 }'
    # The Engine of hack/docker-up.sh stays, also where hack/engine-watch.sh started it anew.
    local engine
    engine="$(cat "$DEV_DIR/dockerd.pid" 2>/dev/null || true)"
    ps -e -o pid=,ppid=,comm=,args= \
        | awk -v engine="${engine:-none}" '$1 != engine && $2 != engine \
            && $3 ~ /^(etcd|kube-|kubelet|dockerd|containerd$|docker-registr|mirrorlet|metrics-server)/ { print "process", $1, $4, $5, $6, $7 }'
    ! command -v nft >/dev/null || { nft list tables ip 2>/dev/null || true; } | lines '^table ip mirrorlet-'
    # Others come and go with the Engine's containers.
    local group
    for group in /sys/fs/cgroup/{,*/}{mirrorlet-test-*,mirrorlet/{,burstable/,besteffort/}pod*}; do
        [ ! -d "$group" ] || printf 'cgroup %s\n' "$group"
    done
    ours_in "${TMPDIR:-/tmp}"
}

# Directories in DIR that the tests themselves remove.
ours_in() {
    find "$1" -ignore_readdir_race -mindepth 1 -maxdepth 1 -name 'mirrorlet-*' -printf 'directory %p\n'
}

# Removes the directory of a bed, and what its agents have on the Engine and in the kernel.
sweep() {
    local bed="$1" owner ids volumes mount pod
    if [ -s "$bed/owner" ]; then
        owner="$(tr -d '[:space:]' <"$bed/owner")"
        ! command -v nft >/dev/null || nft delete table ip "mirrorlet-${owner//[^a-zA-Z0-9]/_}" 2>/dev/null || true
        owner="label=mirrorlet.dev/owner=$owner"
        mapfile -t ids < <(docker ps --all --quiet --filter "$owner")
        [ "${#ids[@]}" = 0 ] || docker rm --force --volumes "${ids[@]}" >/dev/null
        mapfile -t volumes < <(docker volume ls --quiet --filter "$owner")
        [ "${#volumes[@]}" = 0 ] || docker volume rm "${volumes[@]}" >/dev/null
    fi
    for pod in "$bed"/pods/*; do
        rmdir /sys/fs/cgroup/{,*/}mirrorlet/{,burstable/,besteffort/}"pod${pod##*/}" 2>/dev/null || true
    done
    # The last mount is unmounted first.
    awk -v bed="$bed" '$2 == bed || index($2, bed "/") == 1 { print $2 }' /proc/self/mounts | tac | while read -r mount; do
        umount --lazy "$mount"
    done
    rm -rf --one-file-system "$bed"
}

# Removes a TMPDIR of tests, and all in it.
remove() {
    local bed
    find "$1" -mindepth 1 -maxdepth 1 -type d -name 'mirrorlet-test-*' -print0 | while read -r -d '' bed; do
        sweep "$bed"
    done
    sweep "$1"
}

# Removes the directories of tests and of their runs whose process has ended: its id is in their names.
ended() {
    local dir of
    for dir in {"${TMPDIR:-/tmp}",/dev/shm}/mt.*.*; do
        of="${dir%.*}"
        [ -d "$dir" ] && [ ! -L "$dir" ] && [ ! -d "/proc/${of##*.}" ] || continue
        say "removing what a run of the tests left that was cut off: $dir"
        remove "$dir"
    done
}

case "$1" in
sweep)
    # Each test program has one while it runs, in whatever clone.
    reapers_ended || exit 0
    for dir in "${TMPDIR:-/tmp}"/mirrorlet-test-*; do
        [ -d "$dir" ] && [ ! -L "$dir" ] || continue
        say "removing what a test left that was cut off: $dir"
        sweep "$dir"
    done
    ended
    ;;
remove)
    remove "$2"
    # Each test program has one while it runs, in whatever clone.
    if reapers_ended; then ended; fi
    ;;
before)
    there_is | sort >"$2"
    ;;
after)
    [ -r "$2" ] || die "there is no $2"
    wait_for "$REAPERS_SECONDS" "the reapers of the tests to end" reapers_ended || true
    now="$(mktemp)"
    trap 'rm -f "$now"' EXIT
    {
        there_is
        [ -z "${3-}" ] || ours_in "$3"
    } | sort >"$now"
    left="$(comm -13 "$2" "$now")"
    if [ -n "$left" ]; then
        printf 'error: the tests left:\n%s\n' "$left" >&2
        exit 1
    fi
    ;;
esac
