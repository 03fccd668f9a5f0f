#!/usr/bin/env bash
# The plain manifests, made from the chart: what `helm install` with no values makes, without Helm.
#
#   hack/manifests.sh            writes manifests/{mirrorlet,rbac,policy}.yaml
#   hack/manifests.sh --check    fails where they differ from the chart
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$REPO/hack/helm-build.sh"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Labels that say "this is Helm's" would be wrong.
rendered() {
    "$HELM" template mirrorlet "$REPO/charts/mirrorlet" --namespace kube-system --skip-tests "$@" \
        | sed -e '/^ *helm.sh\/chart:/d' -e '/^ *app.kubernetes.io\/managed-by: Helm$/d' -e '/^# Source: /d' -e 's/[[:space:]]*$//'
}

{
    echo "# mirrorlet as a DaemonSet, as \`helm install\` makes it. Made by hack/manifests.sh from"
    echo "# charts/mirrorlet; where something has to differ, use the chart."
    rendered
} >"$work/mirrorlet.yaml"
{
    echo "# The rights of mirrorlet's ServiceAccount, for agents without a node's identity. Made by hack/manifests.sh from charts/mirrorlet."
    echo "# In kube-system, because API priority and fairness serves ServiceAccounts of that namespace"
    echo "# before others, so heartbeats get through an overloaded API server."
    rendered --set identity.mode=serviceAccount --show-only templates/serviceaccount.yaml --show-only templates/rbac.yaml
} >"$work/rbac.yaml"
{
    echo "# What restricts the writes of mirrorlet's ServiceAccount to the host of each agent, for agents in"
    echo "# pods. Made by hack/manifests.sh from charts/mirrorlet."
    rendered --set identity.mode=serviceAccount --show-only templates/policy.yaml
} >"$work/policy.yaml"

for file in mirrorlet.yaml rbac.yaml policy.yaml; do
    if [ "${1:-}" = --check ]; then
        diff -u "$REPO/manifests/$file" "$work/$file" >&2 \
            || die "manifests/$file is not what the chart makes; run: hack/manifests.sh"
    else
        cp "$work/$file" "$REPO/manifests/$file"
    fi
done
