#!/usr/bin/env bash
# The version is in Cargo.toml; what repeats it is held to it.
#
#   hack/versions.sh            prints the version; fails where something else says another
#   hack/versions.sh --write    brings the rest in step
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version="$(awk -F '"' '/^version = / { print $2; exit }' "$REPO/Cargo.toml")"
chart="$REPO/charts/mirrorlet/Chart.yaml"
pod="$REPO/manifests/static-pod.yaml"
if [ "${1:-}" = --write ]; then
    sed -i -E "s/^(version|appVersion): .*/\1: $version/" "$chart"
    sed -i -E "s/image: mirrorlet:.*/image: mirrorlet:$version/" "$pod"
fi
for key in version appVersion; do
    grep -q -x "$key: $version" "$chart" || die "$key of ${chart#"$REPO/"} is not $version; run: hack/versions.sh --write"
done
grep -q "image: mirrorlet:$version\$" "$pod" || die "the image of ${pod#"$REPO/"} is not mirrorlet:$version; run: hack/versions.sh --write"
printf '%s\n' "$version"
