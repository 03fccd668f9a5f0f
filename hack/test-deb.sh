#!/usr/bin/env bash
# Installs the Debian package on this machine with apt, uses what it brought, and takes it away.
#
#   hack/test-deb.sh PACKAGE
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "$#" = 1 ] || die "usage: hack/test-deb.sh PACKAGE"
package="$(realpath "$1")"
[ "$(id -u)" = 0 ] || die "apt needs root"
engine_answers || die "no Docker Engine answers; run hack/docker-up.sh first"
! dpkg -s mirrorlet >/dev/null 2>&1 || die "this machine has the package mirrorlet; it is not touched"
root="$(mktemp -d)"
agent=

finish() {
    local status=$? ids
    [ -z "$agent" ] || { kill "$agent" 2>/dev/null && wait "$agent" 2>/dev/null || true; }
    ids="$(docker ps -aq --filter "label=mirrorlet.dev/owner=$(cat "$root/owner" 2>/dev/null || echo none)")"
    # shellcheck disable=SC2086
    [ -z "$ids" ] || docker rm -fv $ids >/dev/null
    apt-get purge -y mirrorlet >/dev/null 2>&1 || true
    rm -rf "$root"
    exit "$status"
}
trap finish EXIT

# A path of another user, which apt's own may not enter, is only warned of.
apt-get install -y --no-install-recommends "$package" >"$root/apt.log" 2>&1 || { tail "$root/apt.log" >&2; die "apt can't install it"; }
for file in /usr/bin/mirrorlet /etc/default/mirrorlet /usr/lib/systemd/system/mirrorlet.service /lib/systemd/system/mirrorlet.service \
    /usr/share/man/man1/mirrorlet.1.gz /usr/share/man/man1/mirrorlet-run.1.gz /usr/share/bash-completion/completions/mirrorlet \
    /usr/share/zsh/vendor-completions/_mirrorlet /usr/share/fish/vendor_completions.d/mirrorlet.fish \
    /usr/share/doc/mirrorlet/copyright; do
    [ -s "$file" ] || die "the package has no $file"
done
[ -d /etc/mirrorlet/manifests ] || die "there is no directory for manifests"
[ "$(stat -c %a /etc/mirrorlet/manifests)" = 700 ] || die "others have access to the directory for manifests"
dpkg-query --show --showformat '${Conffiles}' mirrorlet | grep -q -F /etc/default/mirrorlet || die "the settings are no conffile"
grep -q '^ExecStart=/usr/bin/mirrorlet run' /lib/systemd/system/mirrorlet.service || die "the unit runs another program"
grep -q '^Environment=MALLOC_ARENA_MAX=' /lib/systemd/system/mirrorlet.service || die "the unit leaves the number of arenas to the C library"
grep -q '^StartLimitIntervalSec=0$' <<<"$(sed -n '/^\[Unit\]$/,/^\[Service\]$/p' /lib/systemd/system/mirrorlet.service)" \
    || die "systemd gives up on an agent that fails five times at once"
# An upgrade restarts the service, and doesn't stop it before: said by the scripts, as systemd may not run here.
scripts=/var/lib/dpkg/info/mirrorlet
# shellcheck disable=SC2016
{
    grep -q '^[[:space:]]*_dh_action=restart$' "$scripts.postinst" || die "an upgrade doesn't restart the service"
    grep -q -F 'deb-systemd-invoke $_dh_action mirrorlet.service' "$scripts.postinst" || die "an upgrade restarts another service"
    [ "$(grep -c -F 'deb-systemd-invoke stop' "$scripts.prerm")" = 1 ] || die "the service is not stopped once, with the package's removal"
    grep -q -F 'deb-systemd-invoke stop mirrorlet.service' <<<"$(grep -A 1 -F '&& [ "$1" = remove ]; then' "$scripts.prerm")" \
        || die "an upgrade stops the service"
}
# Every setting of the defaults is one that the program knows.
env -i HOME=/root PATH="$PATH" "$(sed -n 's/^\(MIRRORLET_MANIFESTS=.*\)/\1/p' /etc/default/mirrorlet)" \
    /usr/bin/mirrorlet config show | grep -q '/etc/mirrorlet/manifests .*env MIRRORLET_MANIFESTS' || die "the settings don't reach the program"
[ "$(mirrorlet version | awk '{ print $2 }')" = "$(dpkg-query --show --showformat '${Version}' mirrorlet | sed 's/-[0-9]*$//')" ] || die "program and package differ in their versions"
if command -v systemd-analyze >/dev/null 2>&1; then
    systemd-analyze verify /lib/systemd/system/mirrorlet.service
fi

mkdir "$root/manifests"
cat >"$root/manifests/web.yaml" <<YAML
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: web, image: "mirrorlet.test/busybox:1", command: [sleep, "1000000"]}]
YAML
mirrorlet run --root "$root" --metrics-address none >"$root/log" 2>&1 &
agent=$!
runs() { mirrorlet status --root "$root" 2>/dev/null | grep -q -E '^default +web-.* 1/1 +Running'; }
wait_for 60 "the pod of the installed program to run" runs
mirrorlet status --root "$root"
before="$(docker ps -q --filter "label=mirrorlet.dev/owner=$(cat "$root/owner")" | sort)"
apt-get install -y --reinstall --no-install-recommends "$package" >/dev/null 2>&1
[ "$(docker ps -q --filter "label=mirrorlet.dev/owner=$(cat "$root/owner")" | sort)" = "$before" ] || die "a package that is installed again touched containers"
apt-get remove -y mirrorlet >"$root/remove.log" 2>&1
grep -q 'keep running unless mirrorlet cleanup removed them' "$root/remove.log" || die "the package does not say what stays"
[ -f /etc/default/mirrorlet ] || die "the settings went with the package; they are to go with purge"
[ "$(docker ps -q --filter "label=mirrorlet.dev/owner=$(cat "$root/owner")" | sort)" = "$before" ] || die "removing the package touched containers"
apt-get purge -y mirrorlet >/dev/null 2>&1
[ ! -e /etc/default/mirrorlet ] || die "purge left the settings"
# Who removed the package first installs it again: the commands of "Uninstall" in docs/operations.md. Nothing
# needs to be emptied before.
apt-get install -y --no-install-recommends "$package" >/dev/null 2>&1
kill "$agent"
wait "$agent" || true
agent=
mirrorlet cleanup --root "$root" | grep -q 'would remove: 2 containers' || die "cleanup does not find the pod's containers"
mirrorlet cleanup --root "$root" --yes
[ -z "$(docker ps -aq --filter "label=mirrorlet.dev/owner=$(cat "$root/owner")")" ] || die "cleanup left containers"
apt-get purge -y mirrorlet >/dev/null 2>&1
say "deb: installed, used, removed, purged, installed again, cleaned up"
