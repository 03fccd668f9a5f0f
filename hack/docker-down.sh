#!/usr/bin/env bash
# Stops the dockerd that hack/docker-up.sh started, by its pid. An Engine that something else
# started is left alone.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STOP_SECONDS=60
pidfile="$DEV_DIR/dockerd.pid"

if [ ! -s "$pidfile" ]; then
    say "hack/docker-up.sh started no dockerd that still runs"
    exit 0
fi
pid="$(cat "$pidfile")"
if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != dockerd ]; then
    say "pid $pid is no dockerd any more"
    rm -f "$pidfile"
    exit 0
fi
say "stopping dockerd (pid $pid) …"
kill -TERM "$pid"
gone() { ! kill -0 "$pid" 2>/dev/null; }
wait_for "$STOP_SECONDS" "dockerd (pid $pid) to end" gone
rm -f "$pidfile"
