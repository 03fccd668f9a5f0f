#!/usr/bin/env bash
# Whether tests left anything on this machine: compares what there is with what there was before.
#
#   hack/left.sh before FILE   writes down what there is
#   hack/left.sh after FILE    names what is there besides; exit 1 if there is anything
#
# Looked at: containers, networks, volumes and images of the Engine of DOCKER_HOST; mounts, network
# namespaces and interfaces, addresses on lo; processes of clusters, Engines and agents; directories
# of ours below $TMPDIR. The sandbox image, that of the tests of the Engine's seam and those of the
# conformance specs stay on purpose. Whatever others do on this machine meanwhile is seen, too.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export PATH="$PATH:/usr/sbin:/sbin"

# Longest wait for the reapers of the test programs, which work after these have ended.
REAPERS_SECONDS=120

[ "$#" = 2 ] || die "usage: hack/left.sh before|after FILE"

reapers_ended() { ! pgrep -f 'mirrorlet-reaper$' >/dev/null; }

# One a line, each with its kind.
there_is() {
    docker ps --all --format 'container {{.Names}}'
    docker network ls --format 'network {{.Name}}'
    docker volume ls --format 'volume {{.Name}}'
    docker images --format 'image {{.Repository}}:{{.Tag}}' | grep -v -E '^image (mirrorlet/pause:|mirrorlet-test/engine-busybox:|registry\.k8s\.io/)' || true
    # Those of the Engine's containers come and go with them.
    awk '$2 !~ "/(docker|containerd|netns)/" { print "mount " $2 }' /proc/self/mounts
    ip netns list 2>/dev/null | awk '{ print "netns " $1 }'
    ip -o link | awk -F ': ' '$2 !~ /^veth/ { print "interface " $2 }'
    ip -o -4 addr show dev lo | awk '{ print "address " $4 }'
    ps -e -o pid=,comm=,args= \
        | awk '$2 ~ /^(etcd|kube-|kubelet|dockerd|containerd$|docker-registr|mirrorlet|metrics-server)/ { print "process", $1, $3, $4, $5, $6 }'
    find "${TMPDIR:-/tmp}" -mindepth 1 -maxdepth 1 -name 'mirrorlet-*' -printf 'directory %p\n'
}

case "$1" in
before)
    there_is | sort >"$2"
    ;;
after)
    [ -r "$2" ] || die "there is no $2"
    wait_for "$REAPERS_SECONDS" "the reapers of the tests to end" reapers_ended || true
    left="$(comm -13 "$2" <(there_is | sort))"
    if [ -n "$left" ]; then
        printf 'error: the tests left:\n%s\n' "$left" >&2
        exit 1
    fi
    ;;
*) die "usage: hack/left.sh before|after FILE" ;;
esac
