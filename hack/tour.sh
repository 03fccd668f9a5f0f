#!/usr/bin/env bash
# Holds the tour of README.md true: types the commands of its sections, in their order, and compares what these
# print with the page. Names each command that prints something else; exit 1 if any does. Runs in namespaces
# of its own, with a Docker Engine of its own; takes about a minute.
#
# Commands are the lines of blocks that begin with "$ ", with their here-documents; those that build and
# install the program are left out, and the agent runs beside the rest. A command that only reads is repeated
# until it prints what the page has. hack/page-lib.sh says what is compared.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PAGE=README.md
SECTIONS=("## One minute to a running pod" "## A tour")
# How long a command that only reads is repeated: many times what any change takes.
PATIENCE=60

[ $# = 0 ] || die "usage: hack/tour.sh"
if [ -z "${MACHINE:-}" ]; then
    "$REPO/hack/kube-build.sh" --only kubectl
fi
MACHINE_BARE=true
# shellcheck source=hack/machine-lib.sh
. "$REPO/hack/machine-lib.sh"
# shellcheck source=hack/page-lib.sh
. "$REPO/hack/page-lib.sh"

# ---- the machine ------------------------------------------------------------------------------

build_images
docker tag mirrorlet.test/busybox:1 busybox:1.36
docker tag mirrorlet.test/busybox:2 busybox:1.37
ln -s "$KUBE_BIN/kubectl" "$MACHINE/bin/"
cat >"$MACHINE/bin/sudo" <<'END'
#!/bin/sh
[ "$1" != -E ] || shift
exec "$@"
END
chmod 755 "$MACHINE/bin/sudo"
export HOME=/srv/root MIRRORLET_EVICTION_HARD=none
mkdir "$HOME" /srv/tour
cd /srv/tour

# ---- the page ---------------------------------------------------------------------------------

reads() { [[ "$1 " =~ ^(sudo\ (-E\ )?)?(mirrorlet\ (status|validate|plan)|kubectl\ get|curl)\  ]]; }
is_left_out() { [[ "$1" =~ ^(make|sudo\ install)\  ]]; }
is_up() { mirrorlet status >/dev/null 2>&1 && [ -s /var/lib/mirrorlet/kubeconfig ]; }
# run COMMAND: the agent, as the page starts it.
run() {
    local words
    read -r -a words <<<"$1"
    begin agent "${words[@]:1}"
    wait_for "$START_SECONDS" "the agent to answer" is_up || { tail -n 20 "$MACHINE/agent.log" >&2; exit 1; }
}
# try COMMAND: its output is in $printed.
try() {
    local out="$MACHINE/out"
    set +e
    eval "$1" >"$out" 2>&1 </dev/null
    set -e
    printed="$(sed -E 's/[[:space:]]+$//' "$out")"
}
total=0 wrong=0
# check COMMAND EXPECTED
check() {
    local deadline=$((SECONDS + PATIENCE))
    total=$((total + 1))
    try "$1"
    while ! agrees "$2" "$printed" && reads "$1" && ((SECONDS < deadline)); do
        sleep 0.3
        try "$1"
    done
    agrees "$2" "$printed" && return
    wrong=$((wrong + 1))
    printf '\n%s: $ %s\n' "$PAGE" "$1"
    diff <(stable <<<"$2") <(stable <<<"$printed") | sed 's/^</  page: /; s/^>/printed: /' || true
}

mapfile -t lines <"$REPO/$PAGE"
index=0 in_section=false sections=0
while ((index < ${#lines[@]})); do
    line="${lines[index]}"
    index=$((index + 1))
    case "$line" in
    '## '*)
        in_section=false
        for section in "${SECTIONS[@]}"; do
            [ "$line" != "$section" ] || in_section=true sections=$((sections + 1))
        done
        continue
        ;;
    '```'*) ;;
    *) continue ;;
    esac
    $in_section || line=skipped
    if [ "$line" != '```' ]; then
        until [ "${lines[index]}" = '```' ]; do index=$((index + 1)); done
    fi
    while [ "${lines[index]}" != '```' ]; do
        take_command "$PAGE"
        if is_left_out "$command"; then
            continue
        elif [[ "$command" == "sudo mirrorlet run "* ]]; then
            run "$command"
        else
            check "$command" "$expected"
        fi
    done
    index=$((index + 1))
done
cd "$REPO"
[ "$sections" = "${#SECTIONS[@]}" ] || die "$PAGE has no section: ${SECTIONS[*]}"
[ "$total" -gt 15 ] || die "$PAGE has a tour of $total commands"
[ "$wrong" = 0 ] || die "$wrong of $total commands of $PAGE print something else"
say "all $total commands of $PAGE print what it has"
