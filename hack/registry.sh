#!/usr/bin/env bash
# Makes sure that a registry is there for the tests of pulls: Debian's docker-registry. Tests start
# one each, on a free port of loopback.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need docker-registry docker-registry
