#!/usr/bin/env bash
# Holds docs/control-plane.md true: types its commands on machines of its own, with a Docker Engine each and
# the control plane of Kubernetes from its Go modules, and checks what came of them: `kubeadm init`, an
# upgrade, an upgrade that fails, and a second machine that joins.
#
# Commands are the lines of `console` blocks that begin with "$ ", with their here-documents; those of
# `console,fails` have to fail, those of `console,second` are typed on the second machine. There is no
# systemd: `systemctl` is a stand-in that starts and stops the agent. Version v1.35.3 of the images is the
# build of v1.35.4 under another name.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PAGE="$REPO/docs/control-plane.md"
ADDRESS=198.18.64.1
SECOND_ADDRESS=198.18.64.2
# Bound on a step; kube-apiserver alone takes a minute to stop on two busy cores.
STEP_SECONDS=300

if [ -z "${MACHINE:-}" ]; then
    # Debian's etcd has no /livez, which kubeadm's manifests probe.
    "$REPO/hack/kube-build.sh" kubeadm
    "$REPO/hack/kube-build.sh" --only etcd
fi
MACHINE_BARE=true
# shellcheck source=hack/machine-lib.sh
. "$REPO/hack/machine-lib.sh"

# ---- the machine ------------------------------------------------------------------------------

ln -s "$KUBE_BIN/kubeadm" "$KUBE_BIN/kubectl" "$MACHINE/bin/"
mkdir -p /etc/kubernetes /var/lib/etcd /var/lib/kubelet /etc/default
for dir in /etc/kubernetes /var/lib/etcd /var/lib/kubelet; do mount -t tmpfs -o mode=0755 machine "$dir"; done
printf 'MIRRORLET_EVICTION_HARD=none\nMIRRORLET_DOCKER=%s\n' "$DOCKER_HOST" >/etc/default/mirrorlet
export HOME="$MACHINE/home"
mkdir "$HOME"
cd "$HOME"

# A unit of systemd's, as far as kubeadm and the page need one.
cat >"$MACHINE/bin/systemctl" <<END
#!/bin/bash
state="\${SERVICE_STATE:-$MACHINE}"
running() { [ -s "\$state/agent.pid" ] && kill -0 "\$(cat "\$state/agent.pid")" 2>/dev/null; }
stop() {
    running || return 0
    kill "\$(cat "\$state/agent.pid")"
    while running; do sleep 0.1; done
}
start() {
    running && return 0
    set -a
    . /etc/default/mirrorlet
    setsid "$MIRRORLET" run >>"\$state/agent.log" 2>&1 </dev/null &
    echo \$! >"\$state/agent.pid"
}
case "\$1" in
start) start ;;
stop) stop ;;
restart) stop; start ;;
is-active | status) running ;;
*) ;;
esac
END
chmod 755 "$MACHINE/bin/systemctl"

# The images that kubeadm's manifests name.
image() {
    local program="$1" name="$2" dir="$MACHINE/images/$1"
    shift 2
    mkdir -p "$dir"
    cp "$KUBE_BIN/$program" "$dir/"
    printf 'FROM scratch\nCOPY %s /usr/local/bin/\n' "$program" >"$dir/Dockerfile"
    DOCKER_BUILDKIT=0 docker build --quiet --tag "$name:$1" "$dir" >/dev/null 2>"$MACHINE/build.log" \
        || { cat "$MACHINE/build.log" >&2; die "the image $name could not be built"; }
    local tag
    for tag in "${@:2}"; do docker tag "$name:$1" "$name:$tag"; done
    rm -rf "$dir"
}

# section HEADING: types its commands.
section() {
    local line kind="" command="" ends="" number=0 title=""
    while IFS= read -r line; do
        number=$((number + 1))
        if [[ "$line" == '## '* ]]; then title="${line#\#\# }"; fi
        [ "$title" = "$1" ] || continue
        case "$line" in
        '```console'*) kind="${line#\`\`\`}" ;;
        '```')
            [ -z "$command" ] || type_in "$kind" "$number" "$command"
            kind="" command=""
            ;;
        *)
            [ -n "$kind" ] || continue
            if [ -n "$ends" ]; then
                command+=$'\n'"$line"
                [ "$line" != "$ends" ] || ends=""
            elif [[ "$line" == '$ '* ]]; then
                [ -z "$command" ] || type_in "$kind" "$number" "$command"
                command="${line#\$ }"
                [[ "$command" != *"<<'END'" ]] || ends=END
            fi
            ;;
        esac
    done <"$PAGE"
}
type_in() {
    local kind="$1" number="$2" command="$3" status=0
    say "$ ${command%%$'\n'*}"
    # In this shell, so that what is exported stays.
    printf '%s\n' "$command" >"$MACHINE/typed"
    if [ "$kind" = console,second ]; then
        typed_second || status=$?
    else
        # shellcheck disable=SC1091
        . "$MACHINE/typed" >"$MACHINE/printed" 2>&1 </dev/null || status=$?
    fi
    case "$kind:$status" in
    console,fails:0) failed "line $number of the page was to fail: $command" ;;
    console,fails:*) ;;
    *:0) ;;
    *) failed "line $number of the page ended with $status: $command" ;;
    esac
}
# On the second machine.
joined() {
    nsenter --target "$second" --net --mount env -C "$second_dir/home" HOME="$second_dir/home" DOCKER_HOST="$second_host" \
        SERVICE_STATE="$second_dir" "$@"
}
# second_machine: with a network, an Engine and a root of its own, on the other end of eth0.
second_machine() {
    second_dir="$MACHINE/second"
    second_host="unix://$second_dir/docker.sock"
    mkdir -p "$second_dir/home"
    unshare --net --mount sleep infinity &
    second=$!
    # Until unshare has run, the process is in this machine's namespaces.
    unshared() { [ "$(readlink "/proc/$second/ns/mnt")" != "$(readlink /proc/self/ns/mnt)" ]; }
    wait_for "$START_SECONDS" "the second machine's namespaces" unshared
    ip link set second0 netns "$second" name eth0
    joined ip address add "$SECOND_ADDRESS/24" dev eth0
    joined ip link set eth0 up
    joined ip link set lo up
    for own in /etc/kubernetes /var/lib/kubelet /var/lib/mirrorlet /etc/default; do
        joined mount -t tmpfs -o mode=0755 machine "$own"
    done
    begin second-dockerd nsenter --target "$second" --net --mount dockerd --config-file "$MACHINE/daemon.json" --host "$second_host" \
        --data-root "$second_dir/docker" --exec-root "$second_dir/exec" --pidfile "$second_dir/dockerd.pid" --cgroup-parent "/${MACHINE##*/}"
    answers_there() { joined docker version >/dev/null 2>&1; }
    wait_for "$START_SECONDS" "the second dockerd to answer" answers_there || failed "$(tail -n 20 "$MACHINE/second-dockerd.log")"
    sed -e 's/MIRRORLET_NODE_NAME=.*/MIRRORLET_NODE_NAME=second/' -e "s,MIRRORLET_DOCKER=.*,MIRRORLET_DOCKER=$second_host," \
        /etc/default/mirrorlet >"$second_dir/settings"
    joined cp "$second_dir/settings" /etc/default/mirrorlet
    joined mkdir /etc/kubernetes/manifests
    token="$(kubeadm token create 2>/dev/null)"
}
typed_second() {
    sed -i "s/TOKEN/$token/" "$MACHINE/typed"
    joined bash -e "$MACHINE/typed" >"$MACHINE/printed" 2>&1 </dev/null
}
failed() {
    tail -n 40 "$MACHINE/printed" >&2
    mirrorlet status >&2 || true
    tail -n 20 "$MACHINE/agent.log" "$MACHINE/second/agent.log" >&2 || true
    die "$1"
}
# containers of the control plane, by name: NAME ID IMAGE.
control_plane() {
    docker ps --no-trunc --filter 'label=io.kubernetes.pod.namespace=kube-system' \
        --format '{{.Label "io.kubernetes.container.name"}} {{.ID}} {{.Image}}' | grep -v '^POD ' | sort
}

say "building the images …"
image kube-apiserver registry.k8s.io/kube-apiserver v1.35.3 v1.35.4
image kube-controller-manager registry.k8s.io/kube-controller-manager v1.35.3 v1.35.4
image kube-scheduler registry.k8s.io/kube-scheduler v1.35.3 v1.35.4
image etcd registry.k8s.io/etcd "$(kubeadm config images list --kubernetes-version v1.35.3 2>/dev/null | sed -n 's,^registry.k8s.io/etcd:,,p')"

# The other end is for the second machine.
ip link add eth0 type veth peer name second0
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
ip link set second0 up

section Prepare
section Init
kubectl get pods -n kube-system --no-headers >"$MACHINE/pods"
[ "$(grep -c ' 1/1 *Running ' "$MACHINE/pods")" = 4 ] || failed "not all of the control plane is Ready: $(cat "$MACHINE/pods")"
control_plane >"$MACHINE/init"
say "init: $(wc -l <"$MACHINE/init") containers, four mirror pods that are Ready"

section Upgrade
control_plane >"$MACHINE/upgraded"
[ "$(grep -c ':v1.35.4$' "$MACHINE/upgraded")" = 3 ] || failed "not all was upgraded: $(cat "$MACHINE/upgraded")"
[ "$(comm -12 "$MACHINE/init" "$MACHINE/upgraded" | cut -d ' ' -f 1)" = etcd ] || failed "etcd was restarted, or something else was not"
say "upgrade: three containers were replaced, etcd was not"

# What the agent says while kubeadm waits.
(while sleep 1; do mirrorlet rollout status --watch=false kube-system/kube-apiserver || true; done) >"$MACHINE/rollouts" 2>&1 &
watcher=$!
section "An upgrade that fails"
kill "$watcher" || true
grep -q 'kube-apiserver:v1.35.9' "$MACHINE/rollouts" || failed "no rollout was held: $(tail -n 20 "$MACHINE/rollouts")"
settled() { [ "$(mirrorlet status -o json | jq '[.pods[] | select(.ready < 1)] | length')" = 0 ]; }
wait_for "$STEP_SECONDS" "the control plane to be whole" settled || failed "the old manifests don't run"
control_plane >"$MACHINE/restored"
cmp "$MACHINE/upgraded" "$MACHINE/restored" || failed "the failed upgrade touched a container"
say "an upgrade that fails: no container was touched"

second_machine
section Join
{ kubectl wait --for=create node/second --timeout=60s && kubectl wait --for=condition=Ready node/second --timeout=120s; } >"$MACHINE/printed" 2>&1 || failed "the second machine is not Ready"
say "join: $(kubectl get node second -o jsonpath='{.metadata.name}, {.status.nodeInfo.kubeletVersion}') is Ready"
say "docs/control-plane.md is true"
