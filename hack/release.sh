#!/usr/bin/env bash
# Everything that a release hands out, from a binary that is there, into target/dist: the image, the
# chart, the Debian package, the program, what they are made of (CycloneDX) and checksums of it all.
#
#   hack/release.sh BINARY
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "$#" = 1 ] || die "usage: hack/release.sh BINARY"
binary="$(realpath "$1")"
version="$("$REPO/hack/versions.sh")"
cd "$REPO"
hack/helm-build.sh
cyclonedx="$(hack/tool.sh cargo-cyclonedx 0.5.9)"
arch="$(dpkg --print-architecture 2>/dev/null || uname -m)"
dist=target/dist
rm -rf "$dist"
mkdir -p "$dist"

install -m 755 "$binary" "$dist/mirrorlet-$version-linux-$arch"
hack/image.sh "$binary" "$dist/mirrorlet-$version-image-$arch.tar"
"$HELM" package charts/mirrorlet --destination "$dist" >/dev/null
hack/deb.sh "$binary" "$dist"
# One beside Cargo.toml, by the tool's habit: with what is linked in, and nothing of tests.
"$cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --override-filename "mirrorlet-$version.cdx"
mv "mirrorlet-$version.cdx.json" "$dist/"
# The tool writes one for each crate of the workspace; what is linked in is in the first.
rm -f vendor/*/"mirrorlet-$version.cdx.json" crates/*/"mirrorlet-$version.cdx.json"
(cd "$dist" && sha256sum -- * >SHA256SUMS && sha256sum --check --quiet SHA256SUMS)
ls -l "$dist"
deb_bytes="$(stat -c %s "$dist"/*.deb)"
((deb_bytes < DEB_MAX)) || die "the Debian package has $deb_bytes bytes, more than the $DEB_MAX it may have"
image_bytes="$(stat -c %s "$dist"/*-image-*.tar)"
((image_bytes < IMAGE_MAX)) || die "the image has $image_bytes bytes, more than the $IMAGE_MAX it may have"
