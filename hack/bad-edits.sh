#!/usr/bin/env bash
# Makes twelve bad edits of a healthy web server under requests every 5 ms: with Docker Compose, with a
# standalone kubelet above cri-dockerd, with mirrorlet's Recreate and with its StartFirst. Prints the table of
# docs/bad-edits.md. Runs in namespaces of its own, with a Docker Engine of its own; takes about forty minutes.
# Number 0 is five good edits with each of them, the figures of docs/rollouts.md.
#
#   hack/bad-edits.sh             all of them
#   hack/bad-edits.sh 3 8         these
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [ -z "${MACHINE:-}" ]; then
    "$REPO/hack/cri-dockerd-build.sh" >/dev/null
    "$REPO/hack/kube-build.sh" --only kubelet >/dev/null
fi
# shellcheck source=hack/machine-lib.sh
. "$REPO/hack/machine-lib.sh"

# How long is watched what compose has left, and what a kubelet has, which starts a static pod's new version 10
# to 15 s after it is asked to, if the old one runs then.
COMPOSE_SECONDS=15
KUBELET_SECONDS=60
# Good edits with each.
GOOD_EDITS=5
# Requests go on for so long before and after a good edit.
CALM_SECONDS=2
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
[ "$#" != 0 ] || mapfile -t wanted < <(seq 0 "${#names[@]}")

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
# What a good edit changes to.
printf 'edition 2\n' >"$MACHINE/image/index.html"
printf 'FROM localhost:5000/web:1\nCOPY index.html /var/www/\n' >"$MACHINE/image/Dockerfile"
DOCKER_BUILDKIT=0 docker build --quiet --tag localhost:5000/web:2 "$MACHINE/image" >/dev/null 2>&1
# The user's password is of no use here: nobody gives it.
printf 'me:$2b$05$mirrorletmirrorletmiresF3k5tYheyP85Rl8Y3UPisJW2/dRxTW\n' >"$MACHINE/htpasswd"
start_registry 5001 "auth: {htpasswd: {realm: shop, path: $MACHINE/htpasswd}}"
start_agent

# A kubelet's sandboxes get a negative OOM score, which needs CAP_SYS_RESOURCE. Without it, this runtime starts
# them with a score of 0. It is the runtime of all containers, so that each start takes as long.
if ! (echo -998 >/proc/self/oom_score_adj) 2>/dev/null; then
    cat >"$MACHINE/runc" <<END
#!/bin/sh
for word; do
    [ "\$before" != --bundle ] || sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "\$word/config.json"
    before="\$word"
done
exec "$(command -v runc)" "\$@"
END
    chmod 755 "$MACHINE/runc"
    printf '{"runtimes": {"scored": {"path": "%s"}}, "default-runtime": "scored"}\n' "$MACHINE/runc" >"$MACHINE/daemon.json"
    kill -HUP "$engine"
    runtime_is_ours() { [ "$(docker info --format '{{.DefaultRuntime}}')" = scored ]; }
    wait_for "$START_SECONDS" "the Engine's runtime" runtime_is_ours
fi

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
# Of a manifest: without our annotations, and at a port of its own.
for_kubelet() { sed -e '/^  annotations:/d' -e '/^    mirrorlet.dev/d' -e 's/hostPort: 8080/hostPort: 7080/'; }
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

# ---- a kubelet ------------------------------------------------------------------------------

PODS="$MACHINE/pods"
mkdir "$PODS"
# It keeps its containers' logs there.
mount -t tmpfs machine /var/log
# A kubelet that runs only while it is its turn: idle, it takes more CPU time than the others.
start_kubelet() {
    local group
    # Its pods' cgroups belong to the machine's, and go with them.
    for group in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do
        [ ! -e "$group" ] || mkdir -p "${group%/*}/${MACHINE##*/}"
    done
    cat >"$MACHINE/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: $PODS
fileCheckFrequency: 1s
containerRuntimeEndpoint: unix://$MACHINE/cri-dockerd.sock
cgroupDriver: $(docker info --format '{{.CgroupDriver}}')
cgroupRoot: /${MACHINE##*/}
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: 127.0.0.1
readOnlyPort: 10255
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
volumePluginDir: $MACHINE/volume-plugins
END
    # The image of mirrorlet's sandboxes, and the Engine's own network.
    begin cri-dockerd "$CRI_DOCKERD" --docker-endpoint "$DOCKER_HOST" --container-runtime-endpoint "unix://$MACHINE/cri-dockerd.sock" \
        --pod-infra-container-image mirrorlet/pause:1 --network-plugin "" \
        --cri-dockerd-root-directory "$MACHINE/cri-dockerd" --streaming-bind-addr 127.0.0.1
    cri_dockerd="$pid"
    wait_for "$START_SECONDS" "cri-dockerd to listen" test -S "$MACHINE/cri-dockerd.sock" \
        || { tail -n 20 "$MACHINE/cri-dockerd.log" >&2; exit 1; }
    begin kubelet "$KUBE_BIN/kubelet" --config "$MACHINE/kubelet.yaml" --hostname-override box --root-dir "$MACHINE/kubelet" \
        --node-ip "$(ip -j -4 address show docker0 | jq -r '.[0].addr_info[0].local')"
    kubelet="$pid"
    wait_for "$START_SECONDS" "the kubelet to answer" kubelet_answers || { tail -n 20 "$MACHINE/kubelet.log" >&2; exit 1; }
}
stop_kubelet() {
    rm -f "$PODS/web.yaml"
    end "$kubelet" TERM
    kubelet_containers --quiet | xargs -r docker rm --force >/dev/null
    end "$cri_dockerd" TERM
    rm -f "$MACHINE/cri-dockerd.sock"
}
kubelet_answers() { kubelet_pods >/dev/null; }
kubelet_pods() { curl -s -f -m 5 http://127.0.0.1:10255/pods; }
# kubelet_containers FLAG…: docker ps of them, the newest first.
kubelet_containers() { docker ps --all --filter label=io.kubernetes.docker.type "$@"; }
# What it says of its pod, as `kubectl get pods` would: READY and STATUS.
kubelet_status() {
    local said
    said="$(kubelet_pods | jq -r '(.items // [])[0] // empty | .status as $status
        | ($status.containerStatuses // []) as $containers
        | [(($status.initContainerStatuses // []) + $containers)[].state | (.waiting // .terminated).reason | select(. and . != "Completed")][0] as $reason
        | "\([$containers[] | select(.ready)] | length)/\(.spec.containers | length) \($reason // $status.phase)"')"
    printf '%s\n' "${said:-no pod}"
}
kubelet_is_ready() { [[ "$(kubelet_status)" == "1/1 Running" ]]; }

# ---- requests -------------------------------------------------------------------------------

# Asks that port once, a line: when it began, when it ended, whether it was answered.
ask_once() {
    local port="$1" begun="$EPOCHREALTIME" line result=failed
    if { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null; then
        if printf 'GET / HTTP/1.0\r\n\r\n' >&3 && IFS= read -r -t 5 line <&3 && [[ "$line" == *" 200 "* ]]; then
            result=answered
        fi
        exec 3>&-
    fi 2>/dev/null
    printf '%s %s %s\n' "$begun" "$EPOCHREALTIME" "$result"
}
# Asks that port every 5 ms.
ask() {
    trap '' PIPE
    exec 4<>"$MACHINE/never"
    while :; do
        ask_once "$1"
        read -r -t 0.005 -u 4 || true
    done
}
# Asks that port once a second, the first time after so many ms, until the file `enough` exists.
ask_each_second() {
    local port="$1" after="$2" next now
    trap '' PIPE
    exec 4<>"$MACHINE/never"
    next=$((${EPOCHREALTIME/./} + after * 1000))
    while :; do
        now="${EPOCHREALTIME/./}"
        ((next <= now)) || read -r -t "$(((next - now) / 1000000)).$(printf '%06d' $(((next - now) % 1000000)))" -u 4 || true
        [ ! -e "$MACHINE/enough" ] || return 0
        ask_once "$port"
        next=$((next + 1000000))
    done
}
[ -p "$MACHINE/never" ] || mkfifo "$MACHINE/never"
asking=""
start_asking() {
    ask "$1" >"$MACHINE/requests" &
    asking=$!
}
# The same rate, whether the requests before were answered or not: 200 that ask once a second.
start_asking_openly() {
    local number
    rm -f "$MACHINE/enough"
    {
        for ((number = 0; number < 200; number++)); do ask_each_second "$1" $((number * 5)) & done
        wait
    } >"$MACHINE/requests" &
    asking=$!
}
# Waits for the answers that are under way. A line: the longest time between two answers, the requests that
# failed, the slowest answer.
stop_asking_openly() {
    : >"$MACHINE/enough"
    wait "$asking"
    sort -k 2,2 "$MACHINE/requests" | awk '$3 == "failed" { failed++; next }
        last && $2 - last > silent { silent = $2 - last }
        $2 - $1 > slowest { slowest = $2 - $1 }
        { last = $2 }
        END { printf "%.2f %d %.2f\n", silent, failed, slowest }'
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
# says_at PORT EDITION
says_at() { [[ "$(curl -s -m 2 "http://127.0.0.1:$1/")" == *"$([ "$2" = 1 ] && echo hello || echo "edition $2")"* ]]; }

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
# The same of a kubelet: $said is what it says of its pod.
with_kubelet() {
    local number="$1"
    start_kubelet
    good_manifest Recreate | for_kubelet >"$MACHINE/next"
    mv "$MACHINE/next" "$PODS/web.yaml"
    wait_for "$START_SECONDS" "the good version of the kubelet to be ready" kubelet_is_ready
    wait_for "$START_SECONDS" "the good version of the kubelet to answer" answers_at 7080
    bad_manifest "$number" Recreate | for_kubelet >"$MACHINE/next"
    start_asking 7080
    sleep 1
    mv "$MACHINE/next" "$PODS/web.yaml"
    sleep "$KUBELET_SECONDS"
    stop_asking
    said="\`$(kubelet_status)\`"
    after="$(kubelet_containers --filter label=io.kubernetes.container.name=web --format '{{.Status}}' | head -n 1 \
        | sed -E 's/ ?([0-9]+ seconds?|Less than a second|About a minute)( ago)?//')"
    after="${after:-no container}"
    if answers_at 7080; then after+=", answers"; else after+=", no answer"; fi
    stop_kubelet
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

# ---- good edits -----------------------------------------------------------------------------

edit_compose() {
    good_compose | sed "s/web:1/web:$1/" >"$PROJECT/compose.yaml"
    (cd "$PROJECT" && docker compose up -d --remove-orphans) >/dev/null 2>&1
}
edit_kubelet() {
    good_manifest Recreate | for_kubelet | sed "s/web:1/web:$1/" >"$MACHINE/next"
    mv "$MACHINE/next" "$PODS/web.yaml"
}
edit_recreate() {
    good_manifest Recreate | sed "s/web:1/web:$1/" >"$MACHINE/next"
    cp "$MACHINE/next" "$MANIFEST"
}
edit_start_first() {
    good_manifest StartFirst | sed "s/web:1/web:$1/" >"$MACHINE/next"
    cp "$MACHINE/next" "$MANIFEST"
}
median() { sort -n | sed -n "$(((GOOD_EDITS + 1) / 2))p"; }
# good_edits NAME EDIT PORT [SETTLED…]: a row; each edit on standard error. SETTLED succeeds once the edit before
# is over.
good_edits() {
    local name="$1" edit="$2" port="$3" number edition
    shift 3
    "$edit" 1
    wait_for "$EDIT_SECONDS" "an answer before the good edits" says_at "$port" 1
    : >"$MACHINE/good"
    for ((number = 0; number < GOOD_EDITS; number++)); do
        [ "$#" = 0 ] || wait_for "$EDIT_SECONDS" "$name to be ready" "$@"
        sleep "$CALM_SECONDS"
        edition=$((2 - number % 2))
        start_asking_openly "$port"
        sleep "$CALM_SECONDS"
        "$edit" "$edition"
        wait_for "$EDIT_SECONDS" "an answer of the edited $name" says_at "$port" "$edition"
        sleep "$CALM_SECONDS"
        stop_asking_openly >>"$MACHINE/good"
    done
    say "$name: $(paste -s -d ';' "$MACHINE/good")"
    printf '| %s | %s s | %s | %s s |\n' "$name" "$(cut -d ' ' -f 1 "$MACHINE/good" | median)" \
        "$(cut -d ' ' -f 2 "$MACHINE/good" | median)" "$(cut -d ' ' -f 3 "$MACHINE/good" | sort -n | tail -n 1)"
}
# mirrorlet's first pod brings the image of sandboxes, which the kubelet's have, too.
edit_recreate 1
wait_for "$START_SECONDS" "mirrorlet's first pod to answer" answers_at 8080

bad=()
for number in "${wanted[@]}"; do [ "$number" = 0 ] || bad+=("$number"); done
if [ "${#bad[@]}" != "${#wanted[@]}" ]; then
    printf '| Good edits | without an answer, median of %s | requests failed, median | slowest answer of all |\n|---|---|---|---|\n' "$GOOD_EDITS"
    good_edits Compose edit_compose 9080
    start_kubelet
    good_edits kubelet edit_kubelet 7080 kubelet_is_ready
    stop_kubelet
    is_healthy() { mirrorlet wait web --for=healthy --timeout 10s >/dev/null 2>&1; }
    good_edits Recreate edit_recreate 8080 is_healthy
    good_edits StartFirst edit_start_first 8080 is_healthy
    # The bad edits begin with this version.
    edit_start_first 1
    wait_for "$EDIT_SECONDS" "the first edition again" says_at 8080 1
    wait_for "$EDIT_SECONDS" "it to be healthy" is_healthy
    printf '\n'
fi
[ "${#bad[@]}" != 0 ] || exit 0

# ---- bad edits ------------------------------------------------------------------------------

printf '| Edit | Compose prints | without an answer | %s s later | kubelet | without an answer | %s s later | mirrorlet status | Recreate: without an answer | StartFirst |\n' \
    "$COMPOSE_SECONDS" "$KUBELET_SECONDS"
printf '|---|---|---|---|---|---|---|---|---|---|\n'
for number in "${bad[@]}"; do
    with_compose "$number"
    row="| $number. ${names[number - 1]} | $said | $gap | $after |"
    with_kubelet "$number"
    row+=" $said | $gap | $after |"
    with_mirrorlet "$number" Recreate
    row+=" $said | $gap |"
    with_mirrorlet "$number" StartFirst
    printf '%s %s |\n' "$row" "$gap"
done
