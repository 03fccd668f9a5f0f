#!/usr/bin/env bash
# Ends the control plane that hack/cluster-up.sh started, by pid. With --purge its data and
# certificates go too.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=hack/cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"

case "${1:-}" in
"" | --purge) ;;
*) die "usage: hack/cluster-down.sh [--purge]" ;;
esac
export PATH="$PATH:/usr/sbin:/sbin"
cluster_down
[ "${1:-}" != --purge ] || rm -rf "$CLUSTER_DIR"
say "no control plane of ours runs"
