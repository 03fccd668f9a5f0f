#!/usr/bin/env bash
# Checks licences, sources, duplicates and, where they can be fetched, security advisories of the
# dependencies by deny.toml.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

deny="$("$REPO/hack/tool.sh" cargo-deny 0.20.2)"
cd "$REPO"
checks=(bans licenses sources)
# The database of advisories is a git repository, which an offline machine can't fetch.
if timeout 20 git ls-remote --quiet https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1; then
    checks+=(advisories)
else
    echo "advisories are not checked: https://github.com/RustSec/advisory-db can't be reached" >&2
fi
"$deny" --locked check "${checks[@]}"
