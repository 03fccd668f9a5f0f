#!/usr/bin/env bash
# Writes the fields of PodSpec and below, one a line with its type, from the OpenAPI document of the
# Kubernetes version whose types the program is built with, and docs/pod-spec.md, which a test makes from
# that list. Run this when k8s-openapi's version feature changes.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need jq jq
command -v go >/dev/null 2>&1 || die "reading Kubernetes' OpenAPI document needs Go: https://go.dev/dl"
# The patch release says nothing new about fields; this one is known to be there.
KUBERNETES=v1.37.1
grep -q '"v1_37"' "$REPO/Cargo.toml" || die "k8s-openapi is of another version than $KUBERNETES: set KUBERNETES in $0"
fields="$REPO/crates/core/src/manifest/support/pod_spec_fields.tsv"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
printf 'module fields\n\ngo 1.24\n' >go.mod
dir="$(GOFLAGS=-mod=mod go mod download -json "k8s.io/kubernetes@$KUBERNETES" | jq -r .Dir)"
# A container's fields stand once, as those of `C`: `containers[]` and `initContainers[]`. Those of an
# ephemeral one are a container's.
jq -r '
  .definitions as $all
  | def name: sub("#/definitions/"; "");
    def fields(path; type):
      $all[type].properties // {} | to_entries[] | .value as $v
      | (if $v["$ref"] then {path: "\(path).\(.key)", type: ($v["$ref"] | name)}
         elif $v.type == "array" and $v.items["$ref"] then {path: "\(path).\(.key)[]", type: ($v.items["$ref"] | name)}
         elif $v.type == "array" then {path: "\(path).\(.key)", type: "\($v.items.type)[]"}
         elif $v.additionalProperties then {path: "\(path).\(.key)", type: "map of \($v.additionalProperties.type // ($v.additionalProperties["$ref"] | name | split(".")[-1]))"}
         else {path: "\(path).\(.key)", type: $v.type} end)
      | if .path == "spec.initContainers[]" then {path, type: "Container"}
        elif .path == "spec.containers[]" then {path: "spec.C", type: "io.k8s.api.core.v1.Container"}
        elif .path == "spec.ephemeralContainers[]" then {path, type: "EphemeralContainer"}
        else . end
      | . as $f
      | "\($f.path)\t\($f.type | split(".")[-1])",
        (if $all[$f.type].properties then fields($f.path; $f.type) else empty end);
    fields("spec"; "io.k8s.api.core.v1.PodSpec")
' "$dir/api/openapi-spec/swagger.json" >"$work/fields"
[ "$(wc -l <"$work/fields")" -gt 300 ] || die "the OpenAPI document was not read"
install -m 644 "$work/fields" "$fields"
say "$(wc -l <"$fields") fields; writing docs/pod-spec.md …"
cd "$REPO"
UPDATE_DOCS=1 run_test mirrorlet-core the_pod_spec_page_is_current
