#!/usr/bin/env bash
# Makes the image as a tar that Docker and containerd load: one static binary, nothing else. Needs no
# Engine, no builder, no network; the same binary gives the same bytes.
#
#   hack/image.sh BINARY OUT.tar    prints the image's name, id and size
#
# With IMAGE_LIBRARIES=1 a binary that isn't static is taken with its libraries: an image for tests
# of a debug build, not one to give away.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "$#" = 2 ] || die "usage: hack/image.sh BINARY OUT.tar"
binary="$1" out="$2"
[ -x "$binary" ] || die "$binary is not there; run: make binary"
libraries=()
if ! LC_ALL=C ldd "$binary" 2>&1 | grep -q -e 'statically linked' -e 'not a dynamic executable'; then
    [ "${IMAGE_LIBRARIES:-}" = 1 ] || die "$binary is not static; run: make binary"
    mapfile -t libraries < <(ldd "$binary" | grep -o '/[^ ]*')
fi
version="$(awk -F '"' '/^version = / { print $2; exit }' "$REPO/Cargo.toml")"
case "$(od -An -tu2 -j18 -N2 "$binary" | tr -d ' ')" in
62) arch=amd64 ;;
183) arch=arm64 ;;
*) die "$binary is of no machine that is known here" ;;
esac

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
tree=(--sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --format=ustar)
mkdir "$work/rootfs" "$work/image"
install -m 755 "$binary" "$work/rootfs/mirrorlet"
for library in "${libraries[@]}"; do
    install -D "$library" "$work/rootfs$library"
done
(cd "$work/rootfs" && tar "${tree[@]}" -cf "$work/image/layer.tar" -- *)
layer="$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)"
cat >"$work/config.json" <<JSON
{"architecture":"$arch","os":"linux","created":"1970-01-01T00:00:00Z","config":{"Entrypoint":["/mirrorlet"],"Cmd":["run"],"Env":["MALLOC_ARENA_MAX=1","MALLOC_MMAP_THRESHOLD_=131072"],"Labels":{"org.opencontainers.image.description":"Turns a Docker Engine into a Kubernetes node for static pods","org.opencontainers.image.licenses":"Apache-2.0","org.opencontainers.image.title":"mirrorlet","org.opencontainers.image.version":"$version"}},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]},"history":[{"created":"1970-01-01T00:00:00Z","created_by":"mirrorlet $version"}]}
JSON
id="$(sha256sum "$work/config.json" | cut -d' ' -f1)"
mv "$work/config.json" "$work/image/$id.json"
printf '[{"Config":"%s.json","RepoTags":["mirrorlet:%s"],"Layers":["layer.tar"]}]' "$id" "$version" >"$work/image/manifest.json"
mkdir -p "$(dirname "$out")"
tar "${tree[@]}" -C "$work/image" -cf "$out" manifest.json "$id.json" layer.tar
printf 'mirrorlet:%s sha256:%s %s bytes\n' "$version" "$id" "$(stat -c %s "$out")"
