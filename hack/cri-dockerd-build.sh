#!/usr/bin/env bash
# Builds cri-dockerd, by which a kubelet runs its pods on a Docker Engine, from the Go module that
# hack/cri-dockerd/go.mod pins, into a cache outside the repository, and prints where it is. What is there
# already is not built again. Cold, on two cores, it takes some minutes.
#
#   "$(hack/cri-dockerd-build.sh)" --version
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Longest wait for another build of the same program on this machine.
LOCK_SECONDS=3600

if [ ! -x "$CRI_DOCKERD" ]; then
    command -v go >/dev/null 2>&1 \
        || die "building cri-dockerd needs Go, $(awk '$1 == "go" { print $2 }' "$REPO/hack/cri-dockerd/go.mod") or newer: https://go.dev/dl"
    mkdir -p "$(dirname "$CRI_DOCKERD")" "$DEV_DIR"
    exec 9>"$CRI_DOCKERD.lock"
    flock --wait "$LOCK_SECONDS" 9 || die "waited $LOCK_SECONDS s in vain for another build of cri-dockerd"
    # Another build may have made it while this one waited.
    if [ ! -x "$CRI_DOCKERD" ]; then
        package=github.com/Mirantis/cri-dockerd
        log="$DEV_DIR/cri-dockerd-build.log"
        started=$SECONDS
        say "building cri-dockerd $CRI_DOCKERD_VERSION, once (some minutes), log in $log …"
        (cd "$REPO/hack/cri-dockerd" && CGO_ENABLED=0 go build -trimpath \
            -ldflags "-s -w -X $package/cmd/version.Version=${CRI_DOCKERD_VERSION#v}" \
            -o "$CRI_DOCKERD.new" "$package") >"$log" 2>&1 </dev/null 9>&- \
            || { tail -n 20 "$log" >&2; die "cri-dockerd could not be built; whole log: $log"; }
        mv "$CRI_DOCKERD.new" "$CRI_DOCKERD"
        say "built $CRI_DOCKERD in $((SECONDS - started)) s"
    fi
fi
printf '%s\n' "$CRI_DOCKERD"
