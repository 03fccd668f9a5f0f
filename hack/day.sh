#!/usr/bin/env bash
# Holds docs/start/one-box.md and docs/day.md true: types their commands, in their order, and compares what
# these print with the page.
# Runs in namespaces of its own, with a Docker Engine of its own, so that it can reboot.
#
#   hack/day.sh           names each command that prints something else than the page; exit 1 if any does
#   hack/day.sh --write   puts what was printed into the pages
#
# Commands are the lines of `console` blocks that begin with "$ ", with their here-documents. Those of
# `console,compose` blocks are typed in the directory of the compose project. In the page "…" stands for
# any text; ages, dates, ids, addresses, sizes, counts of orders and the order of lines are not compared. A
# command that only reads is repeated until it prints what the page has.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PAGES=(docs/start/one-box.md docs/day.md)
# How long a command that only reads is repeated: many times what any change takes.
PATIENCE=30

write=false
case "${1:-}" in
"") ;;
--write) write=true ;;
*) die "usage: hack/day.sh [--write]" ;;
esac
# shellcheck source=hack/machine-lib.sh
. "$REPO/hack/machine-lib.sh"

# As a power cut: agent, Engine and every process of a container are gone at once, then both services start.
# Only this script's own processes are seen here.
reboot() {
    end "$agent" KILL
    end "$engine" KILL
    pkill -KILL -x containerd || true
    pkill -KILL -f "^[^ ]*containerd-shim" || true
    local contained
    contained="$(grep -l -F ":/${MACHINE##*/}/" /proc/[0-9]*/cgroup 2>/dev/null | cut -d / -f 3)"
    # shellcheck disable=SC2086 # one argument a process
    [ -z "$contained" ] || kill -KILL $contained 2>/dev/null || true
    rm -f "$MACHINE/dockerd.pid"
    start_engine
    start_agent
}

# One image in two editions, a program of three roles: web shows how many orders the cache holds, worker
# adds one every second.
shop_image() {
    local edition="$1" dir="$MACHINE/image"
    mkdir -p "$dir"
    cat >"$dir/shop" <<'END'
#!/bin/sh
case "$1" in
web) httpd -f -p 80 -h /www & ;;
cache) nc -ll -p 6379 -e /bin/answer & ;;
worker) while :; do echo "order $(echo "add $(cat /run/secrets/token)" | nc -w 2 cache 6379)"; sleep 1; done & ;;
esac
trap 'kill $!; exit 0' TERM
wait $!
END
    cat >"$dir/answer" <<'END'
#!/bin/sh
read -r what token
if [ "$what" = add ] && [ "$token" = "$(cat /run/secrets/token)" ]; then echo order >>/data/orders; fi
cat /data/orders 2>/dev/null | wc -l
END
    cat >"$dir/index.cgi" <<END
#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
echo "\$(cat /config/title), edition $edition: \$(echo count | nc -w 2 cache 6379) orders"
END
    cat >"$dir/Dockerfile" <<'END'
FROM mirrorlet.test/busybox:1
COPY shop answer /bin/
COPY index.cgi /www/cgi-bin/
ENTRYPOINT ["shop"]
END
    chmod 755 "$dir"/shop "$dir"/answer "$dir"/index.cgi
    DOCKER_BUILDKIT=0 docker build --quiet --tag "localhost:5000/shop:$edition" "$dir" >/dev/null 2>"$MACHINE/build.log" \
        || { cat "$MACHINE/build.log" >&2; die "the image shop:$edition could not be built"; }
    docker push --quiet "localhost:5000/shop:$edition" >/dev/null
}

shop_image 1
shop_image 2
docker tag mirrorlet.test/busybox:1 busybox
docker tag mirrorlet.test/busybox:1 busybox:1.36
docker tag mirrorlet.test/busybox:2 busybox:1.37
docker image rm localhost:5000/shop:1 localhost:5000/shop:2 >/dev/null
export HOME=/srv/root
mkdir /srv/shop /srv/next "$HOME"
start_agent

# ---- the page -------------------------------------------------------------------------------

# shellcheck source=hack/page-lib.sh
. "$REPO/hack/page-lib.sh"

# A command that may be repeated.
reads() { [[ "$1" =~ ^(mirrorlet\ (status|logs|volumes|explain|rollout\ history|plan|diff|exec\ [a-z]+\ --\ (cat|hostname|ls|wc))|curl|docker\ (ps|volume\ ls|stats|compose\ (ps|logs|exec)))\  ]]; }

total=0 wrong=0 code=0
# try COMMAND: its output is in $printed.
try() {
    local out="$MACHINE/out"
    set +e
    # In this shell, so that a command sees the exit code of the one before.
    (exit "$code")
    eval "$1" >"$out" 2>&1 </dev/null
    code=$?
    set -e
    printed="$(sed -E 's/[[:space:]]+$//' "$out")"
}
# check COMMAND EXPECTED: $kept is what belongs into the page.
check() {
    local deadline=$((SECONDS + PATIENCE))
    total=$((total + 1))
    try "$1"
    while ! agrees "$2" "$printed" && ! $write && reads "$1" && ((SECONDS < deadline)); do
        sleep 0.3
        try "$1"
    done
    kept="$2"
    if agrees "$2" "$printed"; then
        return
    fi
    wrong=$((wrong + 1))
    kept="$printed"
    printf '\n%s: $ %s\n' "$page" "$1"
    diff <(stable <<<"$2") <(stable <<<"$printed") | sed 's/^</  page: /; s/^>/printed: /' || true
}

for page in "${PAGES[@]}"; do
    mapfile -t lines <"$REPO/$page"
    result="$MACHINE/${page##*/}"
    : >"$result"
    index=0
    while ((index < ${#lines[@]})); do
        line="${lines[index]}"
        printf '%s\n' "$line" >>"$result"
        index=$((index + 1))
        case "$line" in
        '```console') cd /etc/mirrorlet/manifests ;;
        '```console,compose') cd /srv/shop ;;
        *) continue ;;
        esac
        while [ "${lines[index]}" != '```' ]; do
            take_command "$page"
            check "$command" "$expected"
            printf '$ %s\n' "$command" >>"$result"
            [ -z "$kept" ] || printf '%s\n' "$kept" >>"$result"
        done
    done
    if $write; then cp "$result" "$REPO/$page"; fi
done
cd "$REPO"
if $write; then
    say "$total commands of the pages were typed; the output of $wrong is new"
else
    [ "$wrong" = 0 ] || die "$wrong of $total commands of the pages print something else"
    say "all $total commands of the pages print what these have"
fi
