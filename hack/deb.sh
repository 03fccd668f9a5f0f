#!/usr/bin/env bash
# Makes the Debian package of a binary that is there: unit, manual pages, completions, default
# settings, examples.
#
#   hack/deb.sh BINARY DIRECTORY    prints the package and its size
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "$#" = 2 ] || die "usage: hack/deb.sh BINARY DIRECTORY"
binary="$(realpath "$1")" out="$2"
[ -x "$binary" ] || die "$1 is not there; run: make binary"
deb="$("$REPO/hack/tool.sh" cargo-deb 3.7.0)"
cd "$REPO"
rm -rf target/deb
mkdir -p target/deb/man "$out"
install -m 755 "$binary" target/deb/mirrorlet
install -m 644 packaging/default target/deb/default
sed 's|/usr/local/bin/mirrorlet|/usr/bin/mirrorlet|' manifests/mirrorlet.service >target/deb/mirrorlet.service
cargo run --locked --quiet --example man -- target/deb/man
cargo_deb_out="$("$deb" --no-build --no-strip --output "$out" 2>&1)" || die "cargo-deb: $cargo_deb_out"
package="$(printf '%s\n' "$cargo_deb_out" | tail -n 1)"
printf '%s %s bytes\n' "$package" "$(stat -c %s "$package")"
