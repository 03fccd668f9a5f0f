# Sourced by the scripts in hack/: words, waiting, packages. Not to be run.
# shellcheck shell=bash

# Where the scripts keep what they make: logs, pid files, built tools. Safe to delete when
# nothing of ours runs.
DEV_DIR="${DEV_DIR:-${XDG_STATE_HOME:-${HOME:-/root}/.local/state}/mirrorlet-dev}"
REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export DEV_DIR REPO

# The Kubernetes programs of tests and demo, by version (hack/kube-build.sh): those that
# hack/kube/go.mod pins, unless KUBE_VERSION names others. tests/common/cluster looks in the same
# place.
KUBE_PINNED="$(awk '$1 == "k8s.io/kubernetes" && $2 ~ /^v1/ { print $2; exit }' "$REPO/hack/kube/go.mod")"
KUBE_VERSION="${KUBE_VERSION:-$KUBE_PINNED}"
KUBE_BIN="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mirrorlet-dev/kube/$KUBE_VERSION"
export KUBE_VERSION KUBE_BIN

# The metrics-server of the tests (hack/metrics-server-build.sh); tests/cluster/node_stats.rs looks in the
# same place.
METRICS_SERVER_VERSION="$(awk '/sigs.k8s.io\/metrics-server v/ { for (i = 1; i <= NF; i++) if ($i ~ /^v[0-9]/) { print $i; exit } }' "$REPO/hack/metrics-server/go.mod")"
METRICS_SERVER="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mirrorlet-dev/metrics-server/$METRICS_SERVER_VERSION/metrics-server"
export METRICS_SERVER_VERSION METRICS_SERVER

# Helm (hack/helm-build.sh).
HELM_VERSION=v4.3.1
HELM="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mirrorlet-dev/helm/$HELM_VERSION/helm"
export HELM_VERSION HELM

# Docker Compose (hack/compose-build.sh).
COMPOSE_VERSION="$(awk '/github.com\/docker\/compose\/v2 v/ { for (i = 1; i <= NF; i++) if ($i ~ /^v[0-9]/) { print $i; exit } }' "$REPO/hack/compose/go.mod")"
COMPOSE="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mirrorlet-dev/compose/$COMPOSE_VERSION/docker-compose"
export COMPOSE_VERSION COMPOSE

# cri-dockerd (hack/cri-dockerd-build.sh).
CRI_DOCKERD_VERSION="$(awk '$1 == "github.com/Mirantis/cri-dockerd" { print $2 }' "$REPO/hack/cri-dockerd/go.mod")"
CRI_DOCKERD="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mirrorlet-dev/cri-dockerd/$CRI_DOCKERD_VERSION/cri-dockerd"
export CRI_DOCKERD_VERSION CRI_DOCKERD

# A current Docker Engine (hack/engine29-build.sh): the version it calls itself, and the Go modules it
# is built from.
ENGINE29_VERSION=29.9.0
ENGINE29_MODULE=v2.0.0-beta.24
ENGINE29_CONTAINERD=v2.4.2
ENGINE29_RUNC=v1.5.2
ENGINE29_BIN="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mirrorlet-dev/engine/$ENGINE29_VERSION"
export ENGINE29_VERSION ENGINE29_MODULE ENGINE29_CONTAINERD ENGINE29_RUNC ENGINE29_BIN

# Largest image (the binary of record, 22.4 MB, and 20 KB of tar) and largest Debian package (about 35 % of the
# binary) of a release, in bytes: little more than they have, so that growth is noticed.
IMAGE_MAX=23000000
DEB_MAX=8200000
export IMAGE_MAX DEB_MAX

say() { printf '%s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# wait_for SECONDS WHAT COMMAND…: runs COMMAND until it succeeds; fails loudly after SECONDS.
wait_for() {
    local bound="$1" what="$2" deadline
    shift 2
    deadline=$((SECONDS + bound))
    until "$@"; do
        if ((SECONDS >= deadline)); then
            printf 'error: waited %s s in vain: %s\n' "$bound" "$what" >&2
            return 1
        fi
        sleep 0.2
    done
}

# is_alive NAME PID: whether that process lives and is of that name. A pid alone doesn't tell: after
# a crash it may be another program's by now, or one that is dead and not yet buried. The kernel keeps
# the first 15 letters of a name.
is_alive() {
    grep -q "^Name:[[:space:]]*${1:0:15}\$" "/proc/$2/status" 2>/dev/null \
        && ! grep -q '^State:[[:space:]]*Z' "/proc/$2/status" 2>/dev/null
}

# install_packages PACKAGE…: installs Debian packages; the package lists are read once a run.
install_packages() {
    command -v apt-get >/dev/null 2>&1 || die "there is no apt-get here; install yourself: $*"
    local sudo=() log="$DEV_DIR/apt.log"
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "run as root: apt-get install $*"
        sudo=(sudo)
    fi
    mkdir -p "$DEV_DIR"
    if [ -z "${APT_UPDATED:-}" ]; then
        say "reading package lists …"
        "${sudo[@]}" apt-get update >"$log" 2>&1 </dev/null \
            || { tail -n 20 "$log" >&2; die "apt-get update failed; whole log: $log"; }
        export APT_UPDATED=1
    fi
    say "installing $* …"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1 </dev/null \
        || { tail -n 20 "$log" >&2; die "apt-get install $* failed; whole log: $log"; }
    hash -r
}

# need COMMAND PACKAGE…: installs PACKAGE… when COMMAND isn't there.
need() {
    local command="$1"
    shift
    command -v "$command" >/dev/null 2>&1 && return 0
    install_packages "$@"
    command -v "$command" >/dev/null 2>&1 || die "$* is installed, but $command is still missing"
}

# Whether a Docker Engine answers where DOCKER_HOST or the usual socket says.
engine_answers() {
    command -v docker >/dev/null 2>&1 && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

# run_test PACKAGE NAME: runs the test of that name; fails where there is none, which cargo calls a success.
run_test() {
    local printed
    printed="$("${CARGO:-cargo}" test --locked --package "$1" --lib "$2")" \
        || { printf '%s\n' "$printed" >&2; die "the test $2 of $1 failed"; }
    grep -q -E "^test (.*::)?$2 \.\.\. ok\$" <<<"$printed" || die "$1 has no test $2"
}
