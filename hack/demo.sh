#!/usr/bin/env bash
# Shows what mirrorlet does, on this machine's Docker Engine, with pods of its own: every step is
# checked, and one that doesn't happen in time ends the demo with exit 1. All it made is removed
# at the end, also after a failure. `make demo` runs it, after Engine and images are up.
#
#   hack/demo.sh                  the tour, then clean up
#   hack/demo.sh --leave-running  start the agent on a copy of examples/ and leave it running
#
# MIRRORLET: the binary to show, instead of building one. DEMO_PROFILE: cargo profile (dev: it builds fastest).
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

NODE=demo
# Pods of examples/ that stay running, by manifest name; `batch` ends with success.
STAYING="cache caller careful clock configured counter front orders probed shop-0 shop-1 staged stock-0 stock-1 watcher web worker"

leave_running=false
case "${1:-}" in
"") ;;
--leave-running) leave_running=true ;;
*) die "usage: hack/demo.sh [--leave-running]" ;;
esac

# shellcheck source=hack/demo-lib.sh
. "$REPO/hack/demo-lib.sh"
need curl curl
# Any free address: another agent of this machine may have the usual one.
agent_arguments=(--api-address 127.0.0.1:0)

all_running() {
    local pod
    for pod in $STAYING; do
        report_has '.pods[] | select(.manifestName == $pod) | .phase == "Running" and .ready == .containersTotal' "$pod" || return 1
    done
    report_has '.pods[] | select(.manifestName == "batch") | .phase == "Succeeded"'
}
# ---- the tour -------------------------------------------------------------------------------

title "A directory of manifests, one agent"
mkdir -p "$manifests"
cp "$REPO"/examples/*.yaml "$manifests/"
show "$MIRRORLET" validate "$manifests"
start_agent
owner="$(value .agent.owner)"
[ -n "$owner" ] || die "the agent tells no owner id"
wait_for "$START_SECONDS" "all pods to run" all_running
note "every pod runs, and the batch pod has ended with success:"
show "$MIRRORLET" status --root "$root"

if [ "$leave_running" = true ]; then
    trap - EXIT INT TERM
    cat <<TEXT

The agent runs (pid $agent). Edit the files in $manifests and watch:

   $MIRRORLET status --root $root --watch
   $MIRRORLET logs --root $root web
   docker ps --filter label=mirrorlet.dev/owner=$owner
   tail -f $log

Stop it and remove its pods:

   kill $agent
   docker rm -fv \$(docker ps -aq --filter name=^k8s_ --filter label=mirrorlet.dev/owner=$owner)
   docker volume rm \$(docker volume ls -q --filter label=mirrorlet.dev/owner=$owner)
   awk '\$2 ~ "^$root/" { print \$2 }' /proc/mounts | sort -r | xargs -r umount
   rm -rf $root
TEXT
    exit 0
fi

title "What Docker sees: ordinary containers, named as the kubelet names them"
show docker ps --filter "label=mirrorlet.dev/owner=$owner" --format 'table {{.Names}}\t{{.Image}}\t{{.Status}}'

# Its containers end by themselves, and not in the middle of the next step.
job_is_done() {
    local mine=(--filter "label=mirrorlet.dev/owner=$owner")
    [ "$(docker ps -aq "${mine[@]}" --filter status=exited --filter name=k8s_import_import- | wc -l)" = 5 ] \
        && [ -z "$(docker ps -q "${mine[@]}" --filter name=_import-)" ]
}
wait_for "$CHANGE_SECONDS" "the Job 'import' to be done" job_is_done

title "An edit: the image of 'web' goes from :1 to :2"
before="$(container_id web httpd)"
sandbox="$(sandbox_id web)"
page() { docker exec "$1" wget -q -O - http://127.0.0.1:8080/ 2>/dev/null; }
serves() { [ "$(page "$1")" = "edition $2" ]; }
wait_for "$CHANGE_SECONDS" "'web' to serve edition 1" serves "$before" 1
note "before: $(page "$before")"
others="$(running_ids | grep -v -x -F -e "$before" -e "$sandbox")"
sed -i 's|mirrorlet.test/busybox:1|mirrorlet.test/busybox:2|' "$manifests/web.yaml"
web_is_edited() {
    local id
    id="$(container_id web httpd)"
    [ -n "$id" ] && [ "$id" != "$before" ] \
        && [ "$(docker inspect --format '{{.Config.Image}}' "$id" 2>/dev/null)" = mirrorlet.test/busybox:2 ] \
        && serves "$id" 2
}
wait_for "$CHANGE_SECONDS" "'web' to serve edition 2" web_is_edited
after="$(container_id web httpd)"
note "after:  $(page "$after")"
for id in $others; do
    running_ids | grep -q -x "$id" || die "a container of another pod was restarted by the edit"
done
note "a static pod that changed is a new pod: the old one ended first; no other pod was touched"

title "An edit under traffic: 'till' says StartFirst"
port=18080
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
cat >"$manifests/till.yaml" <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: till
  annotations: {mirrorlet.dev/rollout: StartFirst, mirrorlet.dev/min-ready-seconds: "1"}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: httpd
      image: mirrorlet.test/busybox:1
      command: ["/bin/sh", "-c", "mkdir /tmp/www && echo edition \$EDITION > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www"]
      ports: [{containerPort: 8080, hostPort: $port}]
      readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
YAML
till() { curl --silent --fail --max-time 5 "http://127.0.0.1:$port/"; }
till_serves() { [ "$(till)" = "edition $1" ]; }
till_is_settled() { report_has '.pods[] | select(.manifestName == $pod) | .ready == 1 and .rollout == null' till; }
wait_for "$CHANGE_SECONDS" "'till' to serve edition 1" till_serves 1
wait_for "$CHANGE_SECONDS" "'till' to be healthy" till_is_settled
touch "$root/traffic"
while [ -e "$root/traffic" ]; do till || echo failed; done >"$root/answers" &
asking=$!
sed -i 's|mirrorlet.test/busybox:1|mirrorlet.test/busybox:2|' "$manifests/till.yaml"
wait_for "$CHANGE_SECONDS" "'till' to serve edition 2" till_serves 2
wait_for "$CHANGE_SECONDS" "its rollout to end" till_is_settled
rm "$root/traffic"
wait "$asking"
failed="$(grep -c -x failed "$root/answers" || true)"
note "$(grep -c edition "$root/answers") requests at its host port during the edit, $failed failed"
[ "$failed" = 0 ] || die "a request failed during the edit"
rm "$manifests/till.yaml"
till_is_gone() { report_has '[.pods[] | select(.manifestName == "till")] | length == 0'; }
wait_for "$CHANGE_SECONDS" "'till' to be removed" till_is_gone

title "An edit of a ConfigMap: its file in 'configured' changes, nothing restarts"
configured="$(container_id configured httpd)"
truth="$(running_ids)"
colour() { docker exec "$configured" cat /www/index.html 2>/dev/null; }
has_colour() { [ "$(colour)" = "<h1>$1</h1>" ]; }
has_colour green || die "the ConfigMap's file is not there"
note "before: $(colour)"
sed -i 's|<h1>green</h1>|<h1>blue</h1>|' "$manifests/config-and-secret.yaml"
wait_for "$CHANGE_SECONDS" "the edit in the container" has_colour blue
note "after:  $(colour)"
[ "$(running_ids)" = "$truth" ] || die "the edit of a ConfigMap restarted something"

title "An application of three pods: 'worker' orders from 'orders', 'front' shows how much"
application="$manifests/app-of-three.yaml"
# Asked by name, from the worker.
front() {
    docker exec "$(container_id worker worker)" sh -c \
        "printf 'GET /cgi-bin/page HTTP/1.0\r\n\r\n' | nc -w 2 front 80 | tail -n 1" 2>/dev/null
}
has_orders() { [[ "$(front)" =~ ^"$1: "[1-9] ]]; }
wait_for "$CHANGE_SECONDS" "the first order" has_orders "Orders so far"
ordered="$(front)"
note "a name, a secret, a ConfigMap and a claim at work: $ordered"
truth="$(running_ids)"
sed -i 's|title: Orders so far|title: Sold|' "$application"
wait_for "$CHANGE_SECONDS" "the ConfigMap's edit on the page" has_orders Sold
[ "$(running_ids)" = "$truth" ] || die "the edit of a ConfigMap restarted something"
before="$(container_id orders httpd)"
sed -i 's|touch /data/orders|touch /data/orders /tmp/again|' "$application"
orders_is_edited() {
    local id
    id="$(container_id orders httpd)"
    [ -n "$id" ] && [ "$id" != "$before" ] && has_orders Sold
}
wait_for "$CHANGE_SECONDS" "'orders' to be another pod" orders_is_edited
now="$(front)"
[ "${now##*: }" -ge "${ordered##*: }" ] || die "orders are lost: $ordered, then $now"
note "'orders' was edited, so it is another pod with another address; its data is there: $now"

title "kubectl apply -f, with no cluster: the agent answers kubectl itself"
kubectl="$(command -v kubectl || printf %s "$KUBE_BIN/kubectl")"
kubectl() { "$kubectl" --kubeconfig "$root/kubeconfig" --cache-dir "$root/kubectl-cache" "$@"; }
cat >"$root/hello.yaml" <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello, labels: {app: hello}}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: mirrorlet.test/busybox:1
          command: ["/bin/sh", "-c", "echo hello from $HOSTNAME; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
YAML
kubectl_shown apply -f "$root/hello.yaml"
kubectl_shown rollout status deployment hello --timeout "${CHANGE_SECONDS}s"
kubectl_shown get deployments,pods --selector app=hello
kubectl_shown logs deployment/hello
kubectl_shown set image deployment/hello main=mirrorlet.test/busybox:2
kubectl_shown rollout status deployment hello --timeout "${CHANGE_SECONDS}s"
kubectl_shown delete -f "$root/hello.yaml"
kubectl_shown wait --for=delete pod --selector app=hello --timeout "${CHANGE_SECONDS}s"

title "A bad edit: half of 'web.yaml' is lost while it runs"
truth="$(running_ids)"
cp "$manifests/web.yaml" "$root/web.good"
printf 'apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n    - name: httpd\n      image: [\n' >"$manifests/web.yaml"
web_is_held() {
    report_has '.pods[] | select(.manifestName == $pod) | .held and .phase == "Running" and (.problems | length > 0)' web
}
wait_for "$CHANGE_SECONDS" "the problem to be reported" web_is_held
[ "$(running_ids)" = "$truth" ] || die "the bad edit changed what runs"
note "the last good version keeps running, and status says why:"
show "$MIRRORLET" status --root "$root" web
cp "$root/web.good" "$manifests/web.yaml"
web_is_free() { report_has '.pods[] | select(.manifestName == $pod) | (.held | not) and (.problems | length == 0)' web; }
wait_for "$CHANGE_SECONDS" "the repaired file to be believed" web_is_free
[ "$(running_ids)" = "$truth" ] || die "repairing the file restarted something"
note "repaired; nothing was restarted"

title "A plan: the image of 'web' gets a tag that doesn't exist"
mkdir "$root/next"
sed 's|mirrorlet.test/busybox:2|mirrorlet.test/busybox:nope|' "$manifests/web.yaml" >"$root/next/web.yaml"
planned=0
show "$MIRRORLET" plan --root "$root" "$root/next/web.yaml" || planned=$?
[ "$planned" = 2 ] || die "the plan ended with exit code $planned, not with 2: something would change"
[ "$(running_ids)" = "$truth" ] || die "the plan changed what runs"

title "The same edit made"
sed -i 's|mirrorlet.test/busybox:2|mirrorlet.test/busybox:nope|' "$manifests/web.yaml"
wait_for "$CHANGE_SECONDS" "the new version to be held" web_is_held
[ "$(running_ids)" = "$truth" ] || die "the wrong edit changed what runs"
note "the image is pulled before anything is stopped: the old version runs on"
show "$MIRRORLET" status --root "$root" web
cp "$root/web.good" "$manifests/web.yaml"
wait_for "$CHANGE_SECONDS" "the good file to be believed" web_is_free

title "Another one: the command of 'web' crashes"
# Judged sooner than by default, so that you needn't wait.
judged='    mirrorlet.dev/max-restarts: "1"\n    mirrorlet.dev/min-ready-seconds: "5"'
web_is_healthy() {
    jq --slurp --exit-status 'any(.[].history; .newest as $newest | any(.revisions[];
        (.pod.metadata.name | startswith("web-")) and .pod.metadata.uid == $newest
        and .outcome == "healthy"))' "$root"/rollouts/*.json >/dev/null 2>&1
}
wait_for "$CHANGE_SECONDS" "'web' to be healthy" web_is_healthy
sed -e "s|^metadata:|metadata:\n  annotations:\n$judged|" -e 's|command: .*|command: ["sh", "-c", "exit 3"]|' "$root/web.good" >"$root/web.next"
mv "$root/web.next" "$manifests/web.yaml"
web_is_restored() {
    report_has '.pods[] | select(.manifestName == $pod) | .held and .ready == 1 and (.problems[0].message | contains("failed"))' web
}
wait_for "$CHANGE_SECONDS" "the healthy version to run again" web_is_restored
note "the new version was judged, failed, and was replaced by the last healthy one:"
show "$MIRRORLET" status --root "$root" web
show "$MIRRORLET" rollout history --root "$root" web
cp "$root/web.good" "$manifests/web.yaml"
wait_for "$CHANGE_SECONDS" "the good file to be believed" web_is_free

title "A crash: the writer of 'clock' is killed behind the agent's back"
victim="$(container_id clock writer)"
sibling="$(container_id clock server)"
docker kill "$victim" >/dev/null
is_replaced() {
    local id
    id="$(container_id clock writer)"
    [ -n "$id" ] && [ "$id" != "$victim" ]
}
wait_for "$CHANGE_SECONDS" "a new writer" is_replaced
[ "$(container_id clock server)" = "$sibling" ] || die "the sibling container was restarted too"
restarted() { report_has '.pods[] | select(.manifestName == "clock") | .restarts == 1 and .ready == 2'; }
wait_for "$CHANGE_SECONDS" "the restart to be counted" restarted
note "restarted as attempt 1, its sibling untouched"

title "kill -9 of the agent itself"
truth="$(running_ids)"
old="$agent"
kill -KILL "$agent"
wait_for "$STOP_SECONDS" "the agent to die" agent_gone
wait "$agent" 2>/dev/null || true
[ "$(running_ids)" = "$truth" ] || die "containers changed when the agent died"
note "agent $old is dead; $(wc -l <<<"$truth") containers keep running"
start_agent
wait_for "$START_SECONDS" "all pods to be known again" all_running
[ "$(running_ids)" = "$truth" ] || die "the new agent restarted containers it should have adopted"
note "agent $agent is back and adopted all of them, restarting none"

title "A file goes, its pod goes"
rm "$manifests/host-network.yaml"
watcher_gone() {
    [ -z "$(container_id watcher ip)" ] && [ -z "$(sandbox_id watcher)" ] \
        && report_has '[.pods[] | select(.manifestName == "watcher")] | length == 0'
}
wait_for "$CHANGE_SECONDS" "'watcher' to be removed" watcher_gone
note "'watcher' is gone"

title "In the end"
show "$MIRRORLET" status --root "$root"
show docker ps --filter "label=mirrorlet.dev/owner=$owner" --format 'table {{.Names}}\t{{.Image}}\t{{.Status}}'

title "SIGTERM: the agent ends, the pods stay"
truth="$(running_ids)"
kill -TERM "$agent"
wait_for "$STOP_SECONDS" "the agent to end" agent_gone
code=0
wait "$agent" || code=$?
[ "$code" = 0 ] || die "the agent ended with exit code $code"
[ "$(running_ids)" = "$truth" ] || die "stopping the agent stopped containers"
note "the agent has ended; $(wc -l <<<"$truth") containers keep running, until this demo removes them now"
agent=""

printf '\nThe demo did all it should.\n'
