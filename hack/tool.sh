#!/usr/bin/env bash
# Builds a cargo tool from its crate into a directory of ours, once a machine (minutes), unless the
# machine has it; prints where it is.
#
#   hack/tool.sh cargo-deb 3.7.0
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "$#" -ge 2 ] || die "usage: hack/tool.sh CRATE VERSION [CARGO-ARGUMENT...]"
name="$1" version="$2"
shift 2
tools="$DEV_DIR/tools/$name-$version"
if [ -x "$tools/bin/$name" ]; then
    printf '%s\n' "$tools/bin/$name"
    exit 0
fi
if command -v "$name" >/dev/null 2>&1; then
    command -v "$name"
    exit 0
fi
say "building $name $version, once …"
log="$DEV_DIR/$name.log"
mkdir -p "$DEV_DIR"
env -u CARGO_TARGET_DIR cargo install --locked --version "$version" --root "$tools" "$@" "$name" >"$log" 2>&1 </dev/null \
    || { tail -n 20 "$log" >&2; die "$name could not be built; whole log: $log"; }
printf '%s\n' "$tools/bin/$name"
