# Sourced after lib.sh by the demos: words, the binary, an agent on a root of its own, looking at
# it, and cleaning up. Not to be run. Set before: NODE. Functions a demo may set: agent_arguments
# (array) and clean_up_more (called when all else is removed).
# shellcheck shell=bash

# Bounds in seconds: many times what a step takes on a slow machine.
START_SECONDS=60
CHANGE_SECONDS=60
STOP_SECONDS=5

need jq jq
engine_answers || die "no Docker Engine answers; run hack/docker-up.sh first"

# ---- words ----------------------------------------------------------------------------------

step=0
title() {
    step=$((step + 1))
    printf '\n\033[1m%s. %s\033[0m\n' "$step" "$*"
}
note() { printf '   %s\n' "$*"; }
show() {
    printf '   $ %s\n' "$*"
    "$@" 2>&1 | sed 's/^/   /'
}
# `kubectl` with a line that says so; the demo says which kubectl that is.
kubectl_shown() {
    printf '   $ kubectl %s\n' "$*"
    kubectl "$@" 2>&1 | sed 's/^/   /'
}

# ---- the binary -----------------------------------------------------------------------------

profile="${DEMO_PROFILE:-dev}"
if [ -z "${MIRRORLET:-}" ]; then
    say "building mirrorlet ($profile profile; the first time takes some minutes) …"
    (cd "$REPO" && cargo build --locked --profile "$profile" --bin mirrorlet)
    dir="$profile"
    [ "$profile" = dev ] && dir=debug
    MIRRORLET="${CARGO_TARGET_DIR:-$REPO/target}/$dir/mirrorlet"
fi
[ -x "$MIRRORLET" ] || die "no binary at $MIRRORLET"

# ---- root, agent, cleaning up ---------------------------------------------------------------

root="$(mktemp -d "${TMPDIR:-/tmp}/mirrorlet-demo.XXXXXX")"
manifests="$root/manifests"
log="$root/agent.log"
agent=""
owner=""
agent_arguments=()
metrics_address=none
clean_up_more() { :; }

# Keeps the root in memory, from before anything is in it: the cluster's files, too.
root_in_memory() { mount -t tmpfs -o mode=0700 mirrorlet-demo "$root"; }

agent_alive() { [ -n "$agent" ] && kill -0 "$agent" 2>/dev/null; }
agent_gone() { ! agent_alive; }

# All containers of this agent, running or not.
owned() { docker ps --all --quiet --no-trunc --filter "label=mirrorlet.dev/owner=$owner" "$@"; }

clean_up() {
    local status=$? mount ids
    trap - EXIT INT TERM
    set +e
    if [ "$status" != 0 ] && [ -s "$log" ]; then
        printf '\nlast lines of the agent:\n' >&2
        tail -n 40 "$log" >&2
    fi
    if agent_alive; then
        kill -TERM "$agent"
        wait_for 10 "the agent to end" agent_gone || kill -KILL "$agent"
    fi
    [ -z "$owner" ] && [ -s "$root/owner" ] && owner="$(tr -d '[:space:]' <"$root/owner")"
    if [ -n "$owner" ]; then
        # Its rules for host ports, too.
        "$MIRRORLET" cleanup --root "$root" --yes >/dev/null 2>&1
        ids="$(owned)"
        # shellcheck disable=SC2086 # one argument an id
        [ -z "$ids" ] || docker rm --force --volumes $ids >/dev/null
        ids="$(docker volume ls --quiet --filter "label=mirrorlet.dev/owner=$owner")"
        # shellcheck disable=SC2086 # one argument a name
        [ -z "$ids" ] || docker volume rm $ids >/dev/null
    fi
    clean_up_more
    # The root may be a mount, and memory volumes are mounted below it; deepest first.
    awk -v root="$root" '$2 == root || index($2, root "/") == 1 { print $2 }' /proc/self/mounts | sort -r \
        | while read -r mount; do umount "$mount"; done
    rm -rf "$root"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The agent evicts nothing and its Node never has DiskPressure, however full the machine's disk is.
start_agent() {
    agent_command=("$MIRRORLET" run --manifests "$manifests" --root "$root" --node-name "$NODE"
        --eviction-hard none --metrics-address "$metrics_address" "${agent_arguments[@]}")
    setsid "${agent_command[@]}" >>"$log" 2>&1 </dev/null 8>&- &
    agent=$!
    wait_for "$START_SECONDS" "the agent to answer" answers_or_ended
    agent_alive || die "the agent ended at once"
}
answers_or_ended() { agent_gone || report >/dev/null 2>&1; }

# ---- looking --------------------------------------------------------------------------------

report() { "$MIRRORLET" status --root "$root" -o json; }
# Whether the report has what the jq program asks, with $pod bound to the second argument.
report_has() { report 2>/dev/null | jq --exit-status --arg pod "${2:-}" "$1" >/dev/null 2>&1; }
# One value of the report.
value() { report | jq --raw-output --arg pod "${2:-}" "$1"; }

# Ids of running containers of ours, in a fixed order.
running_ids() { owned --filter status=running | sort; }
# Full id of the running app container $2 of pod $1, empty when none runs.
container_id() {
    docker ps --quiet --no-trunc --filter "label=mirrorlet.dev/owner=$owner" \
        --filter "label=io.kubernetes.pod.name=$1-$NODE" \
        --filter "label=io.kubernetes.container.name=$2" --filter status=running
}
sandbox_id() { container_id "$1" POD; }
