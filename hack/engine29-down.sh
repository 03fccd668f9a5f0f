#!/usr/bin/env bash
# Stops the Docker Engine that hack/engine29-up.sh started, by its pids.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STOP_SECONDS=60
dir="$DEV_DIR/engine29"

for name in dockerd containerd; do
    pidfile="$dir/$name.pid"
    pid="$(cat "$pidfile" 2>/dev/null || true)"
    if [ -z "$pid" ] || ! is_alive "$name" "$pid"; then
        rm -f "$pidfile"
        continue
    fi
    say "stopping $name (pid $pid) …"
    kill -TERM "$pid"
    gone() { ! is_alive "$name" "$pid"; }
    wait_for "$STOP_SECONDS" "$name (pid $pid) to end" gone
    rm -f "$pidfile"
done
ip link del mlt29 2>/dev/null || true
