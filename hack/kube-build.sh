#!/usr/bin/env bash
# Builds the Kubernetes programs that tests and demo run for real, from the Go modules that
# hack/kube/go.mod pins, into a cache outside the repository. What is there already is not built
# again, so a second run takes no time. Cold, on two cores, the four take about nine minutes.
#
#   hack/kube-build.sh            etcd (a Debian package), kube-apiserver, kube-controller-manager, kube-scheduler, kubectl
#   hack/kube-build.sh NAME…      these besides: kubelet, and Kubernetes' own test programs e2e.test, ginkgo, agnhost
#
# And streamclient, a client of exec and port-forward of this repository (hack/kube/streamclient),
# built again when its source has changed: seconds, once kubectl was built.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# build PROGRAM FILE: builds it from its package.
build() {
    local program="$1" file="$2" package command=build flags=()
    case "$program" in
        ginkgo) package=github.com/onsi/ginkgo/v2/ginkgo ;;
        agnhost) package=k8s.io/kubernetes/test/images/agnhost ;;
        e2e.test) package=k8s.io/kubernetes/test/e2e command=test flags=(-c) ;;
        streamclient) package=./streamclient ;;
        *) package="k8s.io/kubernetes/cmd/$program" ;;
    esac
    (cd "$REPO/hack/kube" && CGO_ENABLED=0 go "$command" "${flags[@]}" -trimpath -ldflags "$ldflags" -o "$file" "$package")
}

# Longest wait for another build of the same programs on this machine.
LOCK_SECONDS=3600

# Debian's package may start a service of its own; the tests run an etcd on an address of theirs.
need etcd etcd-server

missing=()
for program in kube-apiserver kube-controller-manager kube-scheduler kubectl "$@"; do
    [ -x "$KUBE_BIN/$program" ] || missing+=("$program")
done
client="$REPO/hack/kube/streamclient/main.go"
# Its name has the sum of its source, so that checkouts side by side don't take each other's.
client_bin="$KUBE_BIN/streamclient-$(sha256sum "$client" | cut -c1-16)"
[ -x "$client_bin" ] || missing+=(streamclient)
[ "${#missing[@]}" != 0 ] || exit 0

command -v go >/dev/null 2>&1 \
    || die "building ${missing[*]} needs Go, $(awk '$1 == "go" { print $2 }' "$REPO/hack/kube/go.mod") or newer: https://go.dev/dl"
mkdir -p "$KUBE_BIN" "$MIRRORLET_DEV_DIR"
exec 9>"$KUBE_BIN/.lock"
flock --wait "$LOCK_SECONDS" 9 || die "waited $LOCK_SECONDS s in vain for another build of the Kubernetes programs"

# kubectl reads its version from another package than the servers do.
major="${KUBE_VERSION#v}"
minor="${major#*.}"
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ldflags+=" -X $package.gitVersion=$KUBE_VERSION -X $package.gitMajor=${major%%.*} -X $package.gitMinor=${minor%%.*}"
done

log="$MIRRORLET_DEV_DIR/kube-build.log"
: >"$log"
for program in "${missing[@]}"; do
    file="$KUBE_BIN/$program"
    [ "$program" != streamclient ] || file="$client_bin"
    # Another build may have made it while this one waited.
    [ ! -x "$file" ] || continue
    started=$SECONDS
    say "building $program $KUBE_VERSION, once (minutes for the first, then each is faster), log in $log …"
    new="$KUBE_BIN/.$program.new"
    build "$program" "$new" >>"$log" 2>&1 </dev/null 9>&- \
        || { tail -n 20 "$log" >&2; die "$program could not be built; whole log: $log"; }
    mv "$new" "$file"
    say "built $file in $((SECONDS - started)) s"
done
