#!/usr/bin/env bash
# Builds Docker Compose, which mirrorlet is measured beside, from the Go module that hack/compose/go.mod
# pins, into a cache outside the repository, and prints where it is. What is there already is not built
# again. Cold, on two cores, it takes about two minutes.
#
#   "$(hack/compose-build.sh)" up -d
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Longest wait for another build of the same program on this machine.
LOCK_SECONDS=3600

if [ ! -x "$COMPOSE" ]; then
    command -v go >/dev/null 2>&1 \
        || die "building Docker Compose needs Go, $(awk '$1 == "go" { print $2 }' "$REPO/hack/compose/go.mod") or newer: https://go.dev/dl"
    mkdir -p "$(dirname "$COMPOSE")" "$DEV_DIR"
    exec 9>"$COMPOSE.lock"
    flock --wait "$LOCK_SECONDS" 9 || die "waited $LOCK_SECONDS s in vain for another build of Docker Compose"
    # Another build may have made it while this one waited.
    if [ ! -x "$COMPOSE" ]; then
        log="$DEV_DIR/compose-build.log"
        started=$SECONDS
        say "building docker-compose $COMPOSE_VERSION, once (some minutes), log in $log …"
        (cd "$REPO/hack/compose" && CGO_ENABLED=0 go build -trimpath \
            -ldflags "-s -w -X github.com/docker/compose/v2/internal.Version=$COMPOSE_VERSION" \
            -o "$COMPOSE.new" github.com/docker/compose/v2/cmd) >"$log" 2>&1 </dev/null 9>&- \
            || { tail -n 20 "$log" >&2; die "Docker Compose could not be built; whole log: $log"; }
        mv "$COMPOSE.new" "$COMPOSE"
        say "built $COMPOSE in $((SECONDS - started)) s"
    fi
fi
printf '%s\n' "$COMPOSE"
