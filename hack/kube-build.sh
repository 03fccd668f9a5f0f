#!/usr/bin/env bash
# Builds the Kubernetes programs that tests and demo run for real, from the Go modules that
# hack/kube/go.mod pins, into a cache outside the repository. What is there already is not built
# again, so a second run takes no time. Cold, on two cores, the four take about nine minutes.
#
#   hack/kube-build.sh            etcd (a Debian package), kube-apiserver, kube-controller-manager, kube-scheduler, kubectl
#   hack/kube-build.sh NAME…      these besides: kubelet, kubeadm, etcd (of the version that kubeadm runs), and Kubernetes' own
#                                 test programs e2e.test, e2e_node.test, ginkgo, agnhost
#   hack/kube-build.sh --only NAME…   these and nothing else
#
# And the programs of this repository, each built again when its source has changed: streamclient, a
# client of exec and port-forward (hack/kube/streamclient), informer, an informer of client-go
# (hack/kube/informer), and manifests, which reads manifests as the kubelet does (hack/kube/manifests).
# Seconds, once the others were built.
#
# KUBE_VERSION=v1.36.3 builds those of another version than the pinned one, with the client-go of
# that version in streamclient, from a module that is derived from Kubernetes' own.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

own_programs=(streamclient informer manifests)

is_own() { [[ " ${own_programs[*]} " == *" $1 "* ]]; }

# derive DIR: a module in DIR as hack/kube is one for the pinned version. Kubernetes' own go.mod names
# modules of its own tree; those are published under a version that tells which they belong to.
derive() {
    local dir="$1" own staging="v0.${KUBE_VERSION#v1.}"
    own="$(go mod download -json "k8s.io/kubernetes@$KUBE_VERSION" | awk -F '"' '$2 == "GoMod" { print $4 }')"
    [ -s "$own" ] || die "there is no module k8s.io/kubernetes $KUBE_VERSION"
    mkdir -p "$dir"
    {
        printf 'module mirrorlet.dev/hack/kube\n\n'
        grep -E '^(go [0-9.]+|godebug default=.*)$' "$own"
        printf '\nrequire k8s.io/kubernetes %s\n\nreplace (\n' "$KUBE_VERSION"
        awk -v version="$staging" '$2 == "=>" && $3 ~ /^\.\/staging\// { print "\t" $1 " => " $1 " " version }' "$own"
        printf ')\n'
    } >"$dir/go.mod"
    # Sums are those of Go's checksum database.
    rm -f "$dir/go.sum"
    cp -r "${own_programs[@]/#/$REPO/hack/kube/}" "$dir/"
}

# build PROGRAM FILE: builds it from its package.
build() {
    local program="$1" file="$2" package command=build flags=()
    case "$program" in
        etcd) package=go.etcd.io/etcd/server/v3 ;;
        ginkgo) package=github.com/onsi/ginkgo/v2/ginkgo ;;
        agnhost) package=k8s.io/kubernetes/test/images/agnhost ;;
        e2e.test) package=k8s.io/kubernetes/test/e2e command=test flags=(-c) ;;
        e2e_node.test) package=k8s.io/kubernetes/test/e2e_node command=test flags=(-c) ;;
        streamclient | informer | manifests) package="./$program" ;;
        *) package="k8s.io/kubernetes/cmd/$program" ;;
    esac
    [ "$module" = "$REPO/hack/kube" ] || flags+=(-mod=mod)
    (cd "$module" && CGO_ENABLED=0 go "$command" "${flags[@]}" -trimpath -ldflags "$ldflags" -o "$file" "$package")
}

# Longest wait for another build of the same programs on this machine.
LOCK_SECONDS=3600

wanted=("$@")
if [ "${1:-}" = --only ]; then
    wanted=("${@:2}")
else
    # Debian's package may start a service of its own; the tests run an etcd on an address of theirs.
    need etcd etcd-server
    wanted=(kube-apiserver kube-controller-manager kube-scheduler kubectl "$@" "${own_programs[@]}")
fi
# file PROGRAM: where it is built to. The name of one of ours has the sum of its source, so that
# checkouts side by side don't take each other's.
file() {
    local sum=""
    ! is_own "$1" || sum="-$(sha256sum "$REPO/hack/kube/$1/main.go" | cut -c1-16)"
    printf '%s\n' "$KUBE_BIN/$1$sum"
}

missing=()
for program in "${wanted[@]}"; do
    [ -x "$(file "$program")" ] || missing+=("$program")
done
[ "${#missing[@]}" != 0 ] || exit 0
[[ "$KUBE_VERSION" =~ ^v1\.[0-9]+\.[0-9]+$ ]] || die "KUBE_VERSION is $KUBE_VERSION; something like $KUBE_PINNED is meant"

command -v go >/dev/null 2>&1 \
    || die "building ${missing[*]} needs Go, $(awk '$1 == "go" { print $2 }' "$REPO/hack/kube/go.mod") or newer: https://go.dev/dl"
mkdir -p "$KUBE_BIN" "$DEV_DIR"
exec 9>"$KUBE_BIN/.lock"
flock --wait "$LOCK_SECONDS" 9 || die "waited $LOCK_SECONDS s in vain for another build of the Kubernetes programs"

# kubectl reads its version from another package than the servers do.
major="${KUBE_VERSION#v}"
minor="${major#*.}"
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ldflags+=" -X $package.gitVersion=$KUBE_VERSION -X $package.gitMajor=${major%%.*} -X $package.gitMinor=${minor%%.*}"
done

log="$DEV_DIR/kube-build-$KUBE_VERSION.log"
: >"$log"
module="$REPO/hack/kube"
if [ "$KUBE_VERSION" != "$KUBE_PINNED" ]; then
    module="$DEV_DIR/kube-module/$KUBE_VERSION"
    derive "$module"
fi
for program in "${missing[@]}"; do
    file="$(file "$program")"
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
