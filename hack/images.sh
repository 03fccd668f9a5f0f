#!/usr/bin/env bash
# Builds the images that examples, demo and tests run, from the files of this machine: a static
# busybox with links for its applets. Needs no registry. An image whose content is up to date is
# left alone, so a second run takes well under a second.
#
#   mirrorlet.test/busybox:1        what the examples run
#   mirrorlet.test/busybox:2        the same with another edition, for image edits
#   mirrorlet.test/user-numeric:1   USER 1000:1000
#   mirrorlet.test/user-named:1     USER app (uid 1234 in its /etc/passwd)
#   mirrorlet.test/user-root:1      USER 0
#   mirrorlet.test/forged:1         labels of ours on the *image*: its containers aren't ours
#   mirrorlet.test/stand-in:1       hack/stand-in, which runs in the place of any program, with bash as its shell
#   mirrorlet.test/kubectl:1        busybox and kubectl, a client of the API server inside a pod; only
#                                   after hack/kube-build.sh
#
#   hack/images.sh           builds them
#   hack/images.sh --tools   installs only what that needs, for a machine without a network
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

CONTENT_LABEL=mirrorlet.test/content

busybox=""
find_busybox() {
    local candidate
    for candidate in /bin/busybox /usr/bin/busybox; do
        # Debian's `busybox` links against libc; an image FROM nothing needs the static one.
        if [ -x "$candidate" ] && ! ldd "$candidate" >/dev/null 2>&1; then
            busybox="$candidate"
            return 0
        fi
    done
    return 1
}
if ! find_busybox; then
    install_packages busybox-static
    find_busybox || die "no static busybox; install the package busybox-static"
fi
[ "${1:-}" != --tools ] || exit 0

engine_answers || die "no Docker Engine answers; run hack/docker-up.sh first"

base="$(cat "$busybox" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)"
content="$base"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
rootfs="$work/rootfs.tar"

make_rootfs() {
    [ -s "$rootfs" ] && return 0
    local dir="$work/rootfs" applet
    mkdir -p "$dir"/{bin,etc,home/app,proc,root,sys,tmp,var/www,dev}
    chmod 1777 "$dir/tmp"
    cp "$busybox" "$dir/bin/busybox"
    chmod 755 "$dir/bin/busybox"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || ln -s busybox "$dir/bin/$applet"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\napp:x:1234:1234:app:/home/app:/bin/sh\n' >"$dir/etc/passwd"
    printf 'root:x:0:\napp:x:1234:\n' >"$dir/etc/group"
    printf 'hello from a static pod\n' >"$dir/var/www/index.html"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$dir" -cf "$rootfs" .
}

# image NAME CHANGE…: imports NAME with the Dockerfile instructions CHANGE…, unless it is there.
image() {
    local name="$1" change args=() have
    shift
    have="$(docker image inspect --format "{{index .Config.Labels \"$CONTENT_LABEL\"}}" "$name" 2>/dev/null || true)"
    [ "$have" = "$content" ] && return 0
    "${rootfs_by:-make_rootfs}"
    for change in 'ENV PATH=/bin' 'WORKDIR /' "LABEL $CONTENT_LABEL=$content" "$@"; do
        args+=(--change "$change")
    done
    docker import "${args[@]}" - "$name" <"$rootfs" >/dev/null
    say "built image $name"
}

image mirrorlet.test/busybox:1 'ENV EDITION=1' 'LABEL mirrorlet.test/edition=1' 'CMD ["/bin/sh"]'
image mirrorlet.test/busybox:2 'ENV EDITION=2' 'LABEL mirrorlet.test/edition=2' 'CMD ["/bin/sh"]'
image mirrorlet.test/user-numeric:1 'USER 1000:1000' 'CMD ["/bin/sleep", "1000000"]'
image mirrorlet.test/user-named:1 'USER app' 'CMD ["/bin/sleep", "1000000"]'
image mirrorlet.test/user-root:1 'USER 0' 'CMD ["/bin/sleep", "1000000"]'
image mirrorlet.test/forged:1 'CMD ["/bin/sleep", "1000000"]' \
    'LABEL mirrorlet.dev/owner=forged' 'LABEL mirrorlet.dev/kind=container' \
    'LABEL mirrorlet.dev/attempt=0' 'LABEL io.kubernetes.pod.name=forged' \
    'LABEL io.kubernetes.pod.namespace=default' 'LABEL io.kubernetes.container.name=forged' \
    'LABEL io.kubernetes.pod.uid=00000000000000000000000000000000'

content="$base-$(cat "$REPO"/hack/stand-in/* | sha256sum | cut -d' ' -f1)"
# Health checks are written for the shell and the grep of larger images.
with_stand_in() {
    local dir="$work/rootfs" tool library
    rm -rf "$rootfs" "$dir"
    make_rootfs
    cp -r "$REPO/hack/stand-in" "$dir/stand-in"
    for tool in bash grep; do
        rm -f "$dir/bin/$tool"
        cp --dereference "$(type -P "$tool")" "$dir/bin/$tool"
        for library in $(ldd "$dir/bin/$tool" | grep -o '/[^ ]*'); do
            mkdir -p "$dir${library%/*}"
            cp --dereference "$library" "$dir$library"
        done
    done
    ln -sf bash "$dir/bin/sh"
    ln -s /stand-in/curl /stand-in/ss "$dir/bin/"
    for tool in pg_isready redis-cli rabbitmq-diagnostics mc; do ln -s /stand-in/listens "$dir/bin/$tool"; done
    ln -s /stand-in/listens "$dir/healthz"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$dir" -cf "$rootfs" .
}
rootfs_by=with_stand_in
image mirrorlet.test/stand-in:1 'ENTRYPOINT ["/stand-in/run"]'

if [ -x "$KUBE_BIN/kubectl" ]; then
    content="$base-$KUBE_VERSION"
    # Made again from the same files, and one more.
    with_kubectl() {
        rm -rf "$rootfs" "$work/rootfs"
        make_rootfs
        tar --append --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$KUBE_BIN" \
            --transform='s|^kubectl|./bin/kubectl|' -f "$rootfs" kubectl
    }
    rootfs_by=with_kubectl
    image mirrorlet.test/kubectl:1 'CMD ["/bin/sh"]'
fi
