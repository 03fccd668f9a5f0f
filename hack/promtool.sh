#!/usr/bin/env bash
# Prints the path of promtool: the machine's, or that of Debian's package, taken once into the cache.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if command -v promtool; then
    exit 0
fi
dir="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mirrorlet-dev/promtool"
if [ ! -x "$dir/promtool" ]; then
    command -v apt-get dpkg-deb >/dev/null || die "promtool is not here, and this is no Debian to take it from; install Prometheus"
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    # The package itself would start a server.
    (cd "$work" && { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; }) >&2 2>/dev/null \
        || die "can't download Debian's package prometheus, which has promtool"
    dpkg-deb -x "$work"/prometheus_*.deb "$work/files"
    mkdir -p "$dir"
    mv "$work/files/usr/bin/promtool" "$dir/promtool"
fi
echo "$dir/promtool"
