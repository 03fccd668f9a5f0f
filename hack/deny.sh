#!/usr/bin/env bash
# Checks licences, sources and duplicates of the dependencies by deny.toml.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

deny="$("$REPO/hack/tool.sh" cargo-deny 0.20.2)"
cd "$REPO"
# Not `advisories`: its database is a git repository, which an offline machine can't fetch.
"$deny" --locked check bans licenses sources
