#!/usr/bin/env bash
# Builds a current Docker Engine, the other end of the versions that mirrorlet works with, from Go
# modules into a cache outside the repository: dockerd, docker-proxy, containerd with its shim, and
# runc. What is there already is not built again. Cold, on two cores, it takes about ten minutes.
#
#   hack/engine29-build.sh
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Longest wait for another build of the same programs on this machine.
LOCK_SECONDS=3600

programs=(dockerd docker-proxy containerd containerd-shim-runc-v2 runc)
missing=()
for program in "${programs[@]}"; do
    [ -x "$ENGINE29_BIN/$program" ] || missing+=("$program")
done
[ "${#missing[@]}" != 0 ] || exit 0

command -v go >/dev/null 2>&1 || die "building ${missing[*]} needs Go: https://go.dev/dl"
mkdir -p "$ENGINE29_BIN" "$DEV_DIR"
exec 9>"$ENGINE29_BIN/.lock"
flock --wait "$LOCK_SECONDS" 9 || die "waited $LOCK_SECONDS s in vain for another build of the same Engine"

log="$DEV_DIR/engine29-build.log"
: >"$log"

# made PROGRAM PACKAGE@VERSION FLAG…: builds it, unless it is there.
made() {
    local program="$1" package="$2" started=$SECONDS new="$ENGINE29_BIN/.new"
    shift 2
    # Another build may have made it while this one waited.
    [ ! -x "$ENGINE29_BIN/$program" ] || return 0
    say "building $program, ${package##*@}, once, log in $log …"
    rm -rf "$new"
    GOBIN="$new" go install -trimpath "$@" "$package" >>"$log" 2>&1 </dev/null 9>&- \
        || { tail -n 20 "$log" >&2; die "$program could not be built; whole log: $log"; }
    mv "$new/$program" "$ENGINE29_BIN/$program"
    rm -rf "$new"
    say "built $ENGINE29_BIN/$program in $((SECONDS - started)) s"
}

export CGO_ENABLED=0
made dockerd "github.com/moby/moby/v2/cmd/dockerd@$ENGINE29_MODULE" \
    -ldflags "-s -w -X github.com/moby/moby/v2/dockerversion.Version=$ENGINE29_VERSION"
made docker-proxy "github.com/moby/moby/v2/cmd/docker-proxy@$ENGINE29_MODULE" -ldflags '-s -w'
made containerd "github.com/containerd/containerd/v2/cmd/containerd@$ENGINE29_CONTAINERD" -ldflags '-s -w'
made containerd-shim-runc-v2 "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@$ENGINE29_CONTAINERD" \
    -ldflags '-s -w'
# It joins namespaces in C, and Debian's own is too old for this Engine.
if [ ! -x "$ENGINE29_BIN/runc" ]; then
    need pkg-config pkg-config
    pkg-config --exists libseccomp || install_packages libseccomp-dev
    need gcc gcc libc6-dev
fi
CGO_ENABLED=1 made runc "github.com/opencontainers/runc@$ENGINE29_RUNC" -tags seccomp -ldflags '-s -w'
