#!/usr/bin/env bash
# Builds the metrics-server that tests/cluster/node_stats.rs runs, from the Go module that
# hack/metrics-server/go.mod pins, into a cache outside the repository. What is there already is not
# built again. Cold, on two cores, it takes about five minutes, of which hack/kube-build.sh's cache
# saves some.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Longest wait for another build on this machine.
LOCK_SECONDS=3600

[ ! -x "$METRICS_SERVER" ] || exit 0
command -v go >/dev/null 2>&1 \
    || die "building metrics-server needs Go, $(awk '$1 == "go" { print $2 }' "$REPO/hack/metrics-server/go.mod") or newer: https://go.dev/dl"
mkdir -p "$(dirname "$METRICS_SERVER")" "$DEV_DIR"
exec 9>"$METRICS_SERVER.lock"
flock --wait "$LOCK_SECONDS" 9 || die "waited $LOCK_SECONDS s in vain for another build of metrics-server"
# Another build may have made it while this one waited.
[ ! -x "$METRICS_SERVER" ] || exit 0

log="$DEV_DIR/metrics-server-build.log"
say "building metrics-server $METRICS_SERVER_VERSION, once (some minutes), log in $log …"
(cd "$REPO/hack/metrics-server" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$METRICS_SERVER.new" \
    sigs.k8s.io/metrics-server/cmd/metrics-server) >"$log" 2>&1 </dev/null 9>&- \
    || { tail -n 20 "$log" >&2; die "metrics-server could not be built; whole log: $log"; }
mv "$METRICS_SERVER.new" "$METRICS_SERVER"
say "built $METRICS_SERVER"
