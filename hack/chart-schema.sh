#!/usr/bin/env bash
# The schema of the chart's value `config`: that of the agent's configuration file, widened by the forms that
# `--set`, `--set-string` and generated values make and the agent reads, too: null for a key that isn't set,
# numbers and booleans in quotes, a number as a string. A boolean is no string: that is `imageGc: off` without
# quotes.
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

# `pattern` is about strings alone, `minimum` and `maximum` are about numbers.
WIDE='
    def or_null: if .anyOf and (has("type") | not) then .anyOf += [{type: "null"}]
        elif .enum then .enum += [null]
        else .type = ([.type] | flatten) + ["null"] end;
    def wide: if .type == "integer" then .type = ["integer", "string"]
            | .pattern = "^\\s*" + (if .minimum < 0 then "[-+]?" else "[+]?" end) + "[0-9]+\\s*$"
        elif .type == "boolean" then .type = ["boolean", "string"] | .pattern = "^\\s*(true|false)\\s*$"
        elif .type == "string" and (has("anyOf") | not) and (.pattern // "" | . as $p | "7" | test($p))
            then .type = ["string", "number"]
        elif .anyOf then .anyOf |= map(wide)
        else . end;
'
# The last of the definitions, one line for each setting.
{
    sed '/^    "config": {$/,$d' "$SCHEMA"
    jq -r "$WIDE"'.properties |= map_values(wide | or_null) | "    \"config\": {",
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
