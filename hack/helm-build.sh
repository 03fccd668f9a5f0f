#!/usr/bin/env bash
# Builds Helm from its Go module into the cache of the Kubernetes programs. What is there already is
# not built again. Cold, on two cores, it takes about four minutes.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Longest wait for another build of the same program on this machine.
LOCK_SECONDS=3600

[ ! -x "$HELM" ] || exit 0
command -v go >/dev/null 2>&1 || die "building Helm needs Go: https://go.dev/dl"
bin="$(dirname "$HELM")"
mkdir -p "$bin" "$DEV_DIR"
exec 9>"$bin/.lock"
flock --wait "$LOCK_SECONDS" 9 || die "waited $LOCK_SECONDS s in vain for another build of Helm"
[ ! -x "$HELM" ] || exit 0

log="$DEV_DIR/helm-build.log"
started=$SECONDS
say "building helm $HELM_VERSION, once (minutes), log in $log …"
new="$bin/.new"
rm -rf "$new"
GOBIN="$new" CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' "helm.sh/helm/v4/cmd/helm@$HELM_VERSION" >"$log" 2>&1 </dev/null 9>&- \
    || { tail -n 20 "$log" >&2; die "helm could not be built; whole log: $log"; }
mv "$new/helm" "$HELM"
rm -rf "$new"
say "built $HELM in $((SECONDS - started)) s"
