#!/usr/bin/env bash
# The chart's README, with a table of all values made from the comments of values.yaml.
#
#   hack/chart-readme.sh            writes charts/mirrorlet/README.md
#   hack/chart-readme.sh --check    fails where it differs
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
CHART="$REPO/charts/mirrorlet"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# One row for each value: its path, its default, the comment above it.
table() {
    awk '
        function trimmed(text) { gsub(/^[ ]+|[ ]+$/, "", text); return text }
        function escaped(text) { gsub(/\|/, "\\|", text); gsub(/</, "\\&lt;", text); return text }
        # What was gathered of one key: a value, a list, or a heading of what is nested in it.
        function flush() {
            if (path != "" && value == "" && items != "") value = "[" items "]"
            if (path != "" && value != "") printf "| `%s` | `%s` | %s |\n", path, escaped(value), escaped(note)
            else if (path != "" && note != "") printf "| **`%s`** | | %s |\n", path, escaped(note)
            path = ""; value = ""; note = ""; items = ""
        }
        NR == 1, /^$/ { next }
        /^[ ]*$/ { flush(); comment = ""; next }
        /^[ ]*#/ {
            text = $0; sub(/^[ ]*# ?/, "", text)
            comment = comment (comment == "" ? "" : " ") text
            next
        }
        # What is said of an item is for the reader of the file.
        /^[ ]*- / {
            text = trimmed($0); sub(/^- /, "", text)
            items = items (items == "" ? "" : ", ") text
            comment = ""
            next
        }
        {
            flush()
            match($0, /^[ ]*/); indent = RLENGTH
            text = trimmed($0); key = text; sub(/:.*/, "", key)
            value = text; sub(/^[^:]*:[ ]*/, "", value)
            while (depth > 0 && indents[depth] >= indent) depth--
            depth++; indents[depth] = indent; keys[depth] = key
            path = keys[1]
            for (i = 2; i <= depth; i++) path = path "." keys[i]
            note = comment; comment = ""
        }
        END { flush() }
    ' "$CHART/values.yaml"
}

{
    cat <<'TEXT'
# mirrorlet's chart

Adds the Docker Engine of each selected host to the cluster as a Node of its own beside the kubelet's: for static pods, shown by mirror pods, and for Pods that are scheduled to it.

```console
$ helm install mirrorlet charts/mirrorlet --namespace kube-system --wait
$ kubectl get nodes
$ helm test mirrorlet --namespace kube-system
```

Kubernetes 1.30 or later. By default each host has its own identity, so an attacker who takes over one host gets no rights on the others. [Installing](../../docs/install.md) has the ways to install, upgrade and remove it, [Identities and rights](../../docs/install.md#identities-and-rights) what an agent may do, [A Node of a cluster](../../docs/kubernetes.md) what the Node does.

`monitoring/rules.yaml` has alerts for Prometheus, `monitoring/dashboard.json` a dashboard for Grafana; `prometheusRule.enabled` and `dashboard.enabled` install them.

## Values

Lists that you set replace the defaults; maps are merged with them. Set a map key to `null` to remove it. `helm install` refuses `null` for keys that the chart needs, values that it doesn't know, and values that don't go together, and names them.

| Value | Default | Meaning |
|---|---|---|
TEXT
    table
    cat <<'TEXT'

This page is made by `hack/chart-readme.sh` from `values.yaml`.
TEXT
} >"$work/README.md"

if [ "${1:-}" = --check ]; then
    diff -u "$CHART/README.md" "$work/README.md" >&2 || die "the chart's README is not what values.yaml says; run: hack/chart-readme.sh"
else
    cp "$work/README.md" "$CHART/README.md"
fi
