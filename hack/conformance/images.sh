#!/usr/bin/env bash
# Makes local stand-ins for the images that Kubernetes' node specs name, under their names, from the
# files of this machine and from Kubernetes' own agnhost (hack/kube-build.sh agnhost). Needs no image
# registry. What is there stays.
#
# FORCE=REGEXP makes the images again that it matches.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

REGISTRY=registry.k8s.io
E2E="$REGISTRY/e2e-test-images"
CACHE="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mirrorlet-dev/conformance"
BUSYBOX="$CACHE/busybox"

engine_answers || die "no Docker Engine answers; run hack/docker-up.sh first"
need cc gcc libc6-dev
need openssl openssl
need curl curl
need nc.openbsd netcat-openbsd
need ip iproute2
[ -x "$KUBE_BIN/agnhost" ] || die "no agnhost; run hack/kube-build.sh agnhost first"

arch="$(docker version --format '{{.Server.Arch}}')"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Debian patches its busybox so that the shell loses names like data-1 from the environment, which
# two specs read. So it is built once from the untouched source of a Debian package.
build_busybox() {
    local dir="$CACHE/busybox-source" mirror
    need make make
    need bzip2 bzip2
    mirror="$(grep -rhoE 'https?://[^ ]+/debian/?$' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | sed -n 1p || true)"
    [ -n "$mirror" ] || die "no Debian mirror in /etc/apt to take the source of busybox from; put a static busybox of your own at $BUSYBOX"
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' \
        "$mirror" >"$dir/list"
    local apt=(apt-get -q -o "Dir::Etc::sourcelist=$dir/list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$dir/lists" -o "Dir::Cache=$dir/cache" -o APT::Sandbox::User=root)
    say "building busybox from source, once (a minute or two), log in $dir/build.log …"
    (
        cd "$dir"
        "${apt[@]}" update
        "${apt[@]}" source --download-only busybox
        rm -rf busybox-*/
        tar -xf busybox_*.orig.tar.*
        cd busybox-*/
        make defconfig
        # tc needs headers that are gone from the kernel, the accelerated sums an assembler's newest words.
        sed -i -e 's/^# CONFIG_STATIC is not set/CONFIG_STATIC=y/' \
            -e 's/^\(CONFIG_TC\|CONFIG_SHA[0-9A-Z]*_HWACCEL\)=y/# \1 is not set/' .config
        make -j"$(nproc)" busybox < <(yes '')
        cp busybox "$BUSYBOX"
    ) >"$dir/build.log" 2>&1 || { tail -n 20 "$dir/build.log" >&2; die "busybox could not be built"; }
}
[ -x "$BUSYBOX" ] || { mkdir -p "$CACHE/busybox-source"; build_busybox; }

missing() {
    [[ -n "${FORCE:-}" && "$1" =~ $FORCE ]] || ! docker image inspect "$1" >/dev/null 2>&1
}

# import DIR IMAGE INSTRUCTION…: that directory as an image of one layer.
import() {
    local dir="$1" image="$2" changes=(--change "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") instruction
    shift 2
    for instruction in "$@"; do changes+=(--change "$instruction"); done
    tar -C "$dir" --owner=0 --group=0 -c . | docker import --platform "linux/$arch" "${changes[@]}" - "$image" >/dev/null
    say "made $image"
}

# shell_root DIR: busybox with its links, users, and the directories of a small distribution.
shell_root() {
    local dir="$1" applet
    mkdir -p "$dir"/{bin,dev,etc,home,proc,root,sys,usr/bin,usr/local/bin,var/tmp}
    mkdir -m 1777 "$dir/tmp"
    cp "$BUSYBOX" "$dir/bin/busybox"
    for applet in $("$BUSYBOX" --list); do
        [ "$applet" = busybox ] || ln -s busybox "$dir/bin/$applet"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$dir/etc/passwd"
    printf 'root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n' >"$dir/etc/group"
}

# host_tool DIR TOOL PATH: a tool of this machine, with its libraries.
host_tool() {
    local dir="$1" tool="$2" library
    mkdir -p "$dir$(dirname "$3")"
    cp -L "$tool" "$dir$3"
    for library in $(ldd "$tool" | grep -o '/[^ ]*' | sort -u); do
        mkdir -p "$dir$(dirname "$library")"
        cp -L "$library" "$dir$library"
    done
}

# A program that waits for ever, reaps children, and ends on TERM and INT.
mkdir "$work/pause"
cat >"$work/pause.c" <<'C'
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
C
cc -Os -static -s -o "$work/pause/pause" "$work/pause.c"
! missing "$REGISTRY/pause:3.10.1" || import "$work/pause" "$REGISTRY/pause:3.10.1" 'ENTRYPOINT ["/pause"]' 'USER 65535:65535'

shell="$work/shell"
shell_root "$shell"
if ! unshare -n ip link add dummy1 type dummy 2>/dev/null; then
    # The PrivilegedPod spec makes a dummy device. A kernel without them makes a bridge here, which
    # needs the same capability.
    say "this kernel has no dummy device: in these images ip makes a bridge instead"
    rm "$shell/bin/ip"
    cat >"$shell/bin/ip" <<'SH'
#!/bin/sh
case "$*" in "link add "*" type dummy") set -- link add "$3" type bridge;; esac
exec busybox ip "$@"
SH
    chmod 755 "$shell/bin/ip"
fi
for image in busybox:1.37.0-1 busybox:1.36.1-1 ipc-utils:1.3 perl:5.26 jessie-dnsutils:1.7; do
    ! missing "$E2E/$image" || import "$shell" "$E2E/$image" 'CMD ["sh"]'
done
! missing "$E2E/nonroot:1.4" || import "$shell" "$E2E/nonroot:1.4" 'USER 1234'
mkdir -p "$shell/www"
echo ok >"$shell/www/index.html"
for image in nginx:1.14-4 nginx:1.15-4; do
    ! missing "$E2E/$image" || import "$shell" "$E2E/$image" 'CMD ["httpd","-f","-p","80","-h","/www"]' 'EXPOSE 80'
done

# A setuid program that says which user it runs as.
if missing "$E2E/nonewprivs:1.3"; then
    cp -a "$shell" "$work/nnp"
    printf '#include <stdio.h>\n#include <unistd.h>\nint main(void){printf("Effective uid: %%d\\n",(int)geteuid());}\n' >"$work/nnp.c"
    cc -Os -static -s -o "$work/nnp/usr/local/bin/nnp" "$work/nnp.c"
    chmod 4755 "$work/nnp/usr/local/bin/nnp"
    import "$work/nnp" "$E2E/nonewprivs:1.3" 'CMD ["nnp"]'
fi

sum() { printf 'sha256:%s' "$(sha256sum <"$1" | cut -d' ' -f1)"; }

# agnhost on a shell, with bash, curl, nc, a certificate, and a small registry tree that holds pause:testing.
if missing "$E2E/agnhost:2.59" || missing "$E2E/agnhost:2.55"; then
    dir="$work/agnhost"
    shell_root "$dir"
    cp "$KUBE_BIN/agnhost" "$dir/agnhost"
    ln -s agnhost "$dir/agnhost-2"
    mkdir "$dir/uploads"
    rm -f "$dir/bin/nc"
    host_tool "$dir" "$(command -v curl)" /usr/bin/curl
    host_tool "$dir" "$(command -v nc.openbsd)" /bin/nc
    host_tool "$dir" "$(command -v bash)" /bin/bash
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$dir/localhost.key" -out "$dir/localhost.crt" -days 3650 \
        -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 2>/dev/null
    chmod 644 "$dir/localhost.key"
    registry="$dir/var/registry/pause"
    mkdir -p "$registry"/{blobs,manifests}
    tar -C "$work/pause" --owner=0 --group=0 -cf "$work/layer.tar" .
    layer="$(sum "$work/layer.tar")"
    cp "$work/layer.tar" "$registry/blobs/$layer"
    printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/pause"]},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
        "$arch" "$layer" >"$work/config"
    config="$(sum "$work/config")"
    cp "$work/config" "$registry/blobs/$config"
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%d},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"%s","size":%d}]}' \
        "$config" "$(stat -c %s "$work/config")" "$layer" "$(stat -c %s "$work/layer.tar")" >"$work/manifest"
    manifest="$(sum "$work/manifest")"
    cp "$work/manifest" "$registry/manifests/$manifest"
    printf '%s\n' "$manifest" >"$registry/manifests/testing"
    for version in 2.59 2.55; do
        import "$dir" "$E2E/agnhost:$version" 'ENTRYPOINT ["/agnhost"]' 'CMD ["pause"]' 'EXPOSE 80 8080 8081 9376 5000'
    done
fi
