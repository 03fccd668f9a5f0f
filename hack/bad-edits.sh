#!/usr/bin/env bash
# Makes twelve bad edits of a healthy web server under requests every 5 ms: with Docker Compose, with
# mirrorlet's Recreate and with its StartFirst. Prints the table of docs/bad-edits.md. Runs in namespaces
# of its own, with a Docker Engine of its own; takes about fifteen minutes.
#
#   hack/bad-edits.sh             all of them
#   hack/bad-edits.sh 3 8         these
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=hack/machine-lib.sh
. "$REPO/hack/machine-lib.sh"

# How long is watched what compose has left.
COMPOSE_SECONDS=15
# Longest wait for an edit's end: many times what the slowest takes.
EDIT_SECONDS=300
PROJECT=/srv/shop
MANIFEST=/etc/mirrorlet/manifests/web.yaml

names=(
    "a tag that doesn't exist"
    "the registry refuses (401)"
    "the program crashes at once"
    "the program crashes after 8 s"
    "it never becomes ready"
    "its init container fails"
    "it is killed for memory"
    "its port is another program's"
    "its variables come from a document or file that isn't there"
    "a file that it mounts is a directory"
    "it must not run as root, its image does"
    "a second container can't be pulled"
)
wanted=("$@")
[ "$#" != 0 ] || mapfile -t wanted < <(seq "${#names[@]}")

# ---- what is deployed -----------------------------------------------------------------------

mkdir -p "$MACHINE/image" "$PROJECT" /srv/data
cat >"$MACHINE/image/web" <<'END'
#!/bin/sh
case "$1" in
crash) exit 3 ;;
crash-later) httpd -p 80 -h /var/www; sleep 8; exit 3 ;;
eat) exec tail /dev/zero ;;
esac
httpd -f -p 80 -h /var/www &
trap 'kill $!; exit 0' TERM
wait $!
END
chmod 755 "$MACHINE/image/web"
printf 'FROM mirrorlet.test/busybox:1\nCOPY web /bin/\nENTRYPOINT ["web"]\n' >"$MACHINE/image/Dockerfile"
DOCKER_BUILDKIT=0 docker build --quiet --tag localhost:5000/web:1 "$MACHINE/image" >/dev/null 2>&1
docker push --quiet localhost:5000/web:1 >/dev/null
# The user's password is of no use here: nobody gives it.
printf 'me:$2b$05$mirrorletmirrorletmiresF3k5tYheyP85Rl8Y3UPisJW2/dRxTW\n' >"$MACHINE/htpasswd"
start_registry 5001 "auth: {htpasswd: {realm: shop, path: $MACHINE/htpasswd}}"
start_agent

good_manifest() {
    cat <<END
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    mirrorlet.dev/rollout: $1
spec:
  terminationGracePeriodSeconds: 5
  containers:
    - name: web
      image: localhost:5000/web:1
      args: [serve]
      ports: [{containerPort: 80, hostPort: 8080}]
      readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}
END
}
good_compose() {
    cat <<'END'
services:
  web:
    image: localhost:5000/web:1
    command: [serve]
    restart: always
    stop_grace_period: 5s
    ports: ["9080:80"]
    healthcheck: {test: [CMD, wget, -q, -O, /dev/null, "http://127.0.0.1/"], interval: 1s}
END
}
bad_manifest() {
    local text
    text="$(good_manifest "$2")"
    case "$1" in
    1) sed 's/web:1$/web:nope/' <<<"$text" ;;
    2) sed 's/localhost:5000/localhost:5001/' <<<"$text" ;;
    3) sed 's/\[serve\]/[crash]/' <<<"$text" ;;
    4) sed 's/\[serve\]/[crash-later]/' <<<"$text" ;;
    # Its verdict is waited for: with the default deadline that is five minutes.
    5) sed -e 's|{port: 80}|{port: 80, path: /missing}|' -e 's|^spec:|    mirrorlet.dev/progress-deadline-seconds: "30"\n&|' <<<"$text" ;;
    6) sed 's|^  containers:|  initContainers:\n    - {name: setup, image: "localhost:5000/web:1", args: [crash]}\n&|' <<<"$text" ;;
    7) sed 's|\[serve\]|[eat]\n      resources: {limits: {memory: 32Mi}}|' <<<"$text" ;;
    8) sed 's/hostPort: 8080/hostPort: 5000/' <<<"$text" ;;
    9) sed 's|\[serve\]|&\n      envFrom: [{configMapRef: {name: missing}}]|' <<<"$text" ;;
    10) printf '%s\n      volumeMounts: [{name: conf, mountPath: /etc/app.conf}]\n  volumes:\n    - {name: conf, hostPath: {path: /srv/data, type: File}}\n' "$text" ;;
    11) sed 's|\[serve\]|&\n      securityContext: {runAsNonRoot: true}|' <<<"$text" ;;
    12) printf '%s\n    - {name: helper, image: "localhost:5000/helper:nope"}\n' "$text" ;;
    esac
}
bad_compose() {
    local text
    text="$(good_compose)"
    case "$1" in
    1) sed 's/web:1$/web:nope/' <<<"$text" ;;
    2) sed 's/localhost:5000/localhost:5001/' <<<"$text" ;;
    3) sed 's/\[serve\]/[crash]/' <<<"$text" ;;
    4) sed 's/\[serve\]/[crash-later]/' <<<"$text" ;;
    5) sed 's|127.0.0.1/|&missing|' <<<"$text" ;;
    6) printf '%s\n    depends_on: {setup: {condition: service_completed_successfully}}\n  setup: {image: "localhost:5000/web:1", command: [crash]}\n' "$text" ;;
    7) sed 's|\[serve\]|[eat]\n    mem_limit: 32m|' <<<"$text" ;;
    8) sed 's/"9080:80"/"5000:80"/' <<<"$text" ;;
    9) sed 's|\[serve\]|&\n    env_file: missing.env|' <<<"$text" ;;
    10) sed 's|\[serve\]|&\n    volumes: ["/srv/data:/etc/app.conf"]|' <<<"$text" ;;
    12) printf '%s\n  helper: {image: "localhost:5000/helper:nope"}\n' "$text" ;;
    esac
}

# ---- requests -------------------------------------------------------------------------------

# Asks that port every 5 ms, one line a request: when it began, when it ended, whether it was answered.
ask() {
    local port="$1" begun line result
    trap '' PIPE
    exec 4<>"$MACHINE/never"
    while :; do
        begun="$EPOCHREALTIME"
        result=failed
        if { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null; then
            if printf 'GET / HTTP/1.0\r\n\r\n' >&3 && IFS= read -r -t 5 line <&3 && [[ "$line" == *" 200 "* ]]; then
                result=answered
            fi
            exec 3>&-
        fi 2>/dev/null
        printf '%s %s %s\n' "$begun" "$EPOCHREALTIME" "$result"
        read -r -t 0.005 -u 4 || true
    done
}
[ -p "$MACHINE/never" ] || mkfifo "$MACHINE/never"
asking=""
start_asking() {
    ask "$1" >"$MACHINE/requests" &
    asking=$!
}
# The seconds without an answer, of each stretch from the first request that failed to the end of the next one
# that was answered, and a slow answer: into $gap.
stop_asking() {
    kill "$asking"
    wait "$asking" 2>/dev/null || true
    gap="$(awk '$3 == "failed" && !since { since = $1 }
        $3 == "answered" && since { sum += $2 - since; since = 0 }
        $3 == "answered" && $2 - $1 > slowest { slowest = $2 - $1 }
        { last = $2 }
        END { if (since) sum += last - since
              if (sum) printf "%.1f s%s", sum, (since ? ", not over" : ""); else printf "none"
              if (slowest >= 0.8) printf "; slowest answer %.1f s", slowest }' "$MACHINE/requests")"
}
answers_at() { curl -s -o /dev/null -m 2 "http://127.0.0.1:$1/"; }
# ---- the edits ------------------------------------------------------------------------------

# Into $said, $gap and $after: the last line of `up`, its exit code, and what is there later.
with_compose() {
    local number="$1" code=0
    said="has no such check" gap="" after=""
    [ "$number" != 11 ] || return 0
    good_compose >"$PROJECT/compose.yaml"
    (cd "$PROJECT" && docker compose up -d --remove-orphans) >/dev/null 2>&1
    wait_for "$START_SECONDS" "the good version of compose to answer" answers_at 9080
    bad_compose "$number" >"$PROJECT/compose.yaml"
    start_asking 9080
    sleep 1
    (cd "$PROJECT" && docker compose up -d) >"$MACHINE/said" 2>&1 || code=$?
    sleep "$COMPOSE_SECONDS"
    stop_asking
    said="\`$(tail -n 1 "$MACHINE/said" | sed -E 's/[0-9a-f]{64}/…/; s/^ +//; s/ +/ /g')\`, exit code $code"
    after="$(docker ps --all --filter name=shop-web-1 --format '{{.Status}}' \
        | sed -E 's/ ?([0-9]+ seconds?|Less than a second|About a minute)( ago)?//')"
    if answers_at 9080; then after+=", answers"; else after+=", no answer"; fi
}
is_held() { mirrorlet status -o json | jq -e '.pods[] | select(.held)' >/dev/null; }
# Into $said and $gap: the pod's STATUS, and the seconds.
with_mirrorlet() {
    local number="$1" mode="$2"
    good_manifest "$mode" >"$MACHINE/next"
    cp "$MACHINE/next" "$MANIFEST"
    mirrorlet wait web --for=healthy --timeout "${EDIT_SECONDS}s" >/dev/null
    wait_for "$START_SECONDS" "the good version to answer" answers_at 8080
    bad_manifest "$number" "$mode" >"$MACHINE/next"
    start_asking 8080
    sleep 1
    cp "$MACHINE/next" "$MANIFEST"
    wait_for "$EDIT_SECONDS" "edit $number to be held or undone" is_held
    # The failed version may be there for a moment yet.
    sleep 1
    mirrorlet wait web --timeout "${EDIT_SECONDS}s" >/dev/null
    wait_for "$EDIT_SECONDS" "an answer after edit $number" answers_at 8080
    sleep 2
    stop_asking
    said="\`$(mirrorlet status | awk '$2 == "web-box"' | sed -E 's/^[^ ]+ +[^ ]+ +[^ ]+ +//; s/ +[0-9]+ .*//' | head -n 1)\`"
}

printf '| Edit | Compose prints | without an answer | %s s later | mirrorlet status | Recreate: without an answer | StartFirst |\n' "$COMPOSE_SECONDS"
printf '|---|---|---|---|---|---|---|\n'
for number in "${wanted[@]}"; do
    with_compose "$number"
    row="| $number. ${names[number - 1]} | $said | $gap | $after |"
    with_mirrorlet "$number" Recreate
    row+=" $said | $gap |"
    with_mirrorlet "$number" StartFirst
    printf '%s %s |\n' "$row" "$gap"
done
