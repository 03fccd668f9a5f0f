#!/usr/bin/env bash
# Brings up a Kubernetes control plane on this machine: real servers, no kubelet. Prints the
# kubeconfigs it made. What runs already is left alone; hack/cluster-down.sh ends it.
#
#   hack/cluster-up.sh             with kubeconfigs for an administrator, Node demo-docker and the ServiceAccount
#   hack/cluster-up.sh NODE…       for these Nodes instead of demo-docker
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=hack/cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"

"$REPO/hack/kube-build.sh"
say "bringing up Kubernetes $KUBE_VERSION at https://$CLUSTER_ADDRESS:443, logs in $CLUSTER_DIR …"
cluster_up

[ "$#" != 0 ] || set -- demo-docker
printf 'administrator     %s\n' "$CLUSTER_DIR/admin.kubeconfig"
for node in "$@"; do
    printf 'Node %-12s %s\n' "$node" "$(cluster_node_kubeconfig "$node")"
done
printf 'ServiceAccount    %s\n' "$(cluster_service_account_kubeconfig)"
printf 'try: %s --kubeconfig %s get nodes\n' "$KUBE_BIN/kubectl" "$CLUSTER_DIR/admin.kubeconfig"
