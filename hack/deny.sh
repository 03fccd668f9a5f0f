#!/usr/bin/env bash
# Checks licences, sources and duplicates of the dependencies by deny.toml. cargo-deny is built
# from its crate into a directory of ours when it is missing (some minutes, once a machine).
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=0.20.2
tools="$MIRRORLET_DEV_DIR/tools/cargo-deny-$VERSION"

cd "$REPO"
if command -v cargo-deny >/dev/null 2>&1; then
    deny=cargo-deny
elif [ -x "$tools/bin/cargo-deny" ]; then
    deny="$tools/bin/cargo-deny"
else
    say "building cargo-deny $VERSION, once …"
    log="$MIRRORLET_DEV_DIR/cargo-deny.log"
    mkdir -p "$MIRRORLET_DEV_DIR"
    cargo install --locked --version "$VERSION" --root "$tools" cargo-deny >"$log" 2>&1 </dev/null \
        || { tail -n 20 "$log" >&2; die "cargo-deny could not be built; whole log: $log"; }
    deny="$tools/bin/cargo-deny"
fi
# Not `advisories`: its database is a git repository, which an offline machine can't fetch.
"$deny" --locked check bans licenses sources
