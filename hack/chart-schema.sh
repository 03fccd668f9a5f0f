#!/usr/bin/env bash
# The schema of the chart's value `config`: that of the agent's configuration file.
#
#   hack/chart-schema.sh            writes it into charts/mirrorlet/values.schema.json
#   hack/chart-schema.sh --check    fails where it differs
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need jq jq
SCHEMA="$REPO/charts/mirrorlet/values.schema.json"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# The last of the definitions, one line for each setting.
{
    sed '/^    "config": {$/,$d' "$SCHEMA"
    jq -r '"    \"config\": {",
        "      \"type\": \(.type | tojson),",
        "      \"additionalProperties\": \(.additionalProperties),",
        "      \"properties\": {",
        (.properties | to_entries | map("        \(.key | tojson): \(.value | tojson)") | join(",\n")),
        "      }", "    }", "  }", "}"' "$REPO/docs/config-schema.json"
} >"$work/values.schema.json"

if [ "${1:-}" = --check ]; then
    diff -u "$SCHEMA" "$work/values.schema.json" >&2 \
        || die "the chart's schema of config is not that of docs/config-schema.json; run: hack/chart-schema.sh"
else
    cp "$work/values.schema.json" "$SCHEMA"
fi
