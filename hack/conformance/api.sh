#!/usr/bin/env bash
# Kubernetes' judgement of the embedded API: of the e2e specs [sig-cli] and [sig-api-machinery] those
# that need nothing that it doesn't serve (api-skip.txt). They run against an agent that has no cluster,
# on the Engine of DOCKER_HOST. Prints the score and the specs that failed; exit 1 if one of api.txt
# doesn't run and pass.
#
#   hack/conformance/api.sh
#
# FOCUS, SKIP: regular expressions. PROCS: specs at a time (4). OUT: where reports and logs go.
# MIRRORLET: the binary to judge, instead of building one.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

here="$REPO/hack/conformance"
# With a FOCUS of one's own the others of api.txt are not missed.
ONLY="${FOCUS:+some}"
FOCUS="${FOCUS:-\[sig-cli\]|\[sig-api-machinery\]}"
SKIP="${SKIP:-$(grep -v '^#' "$here/api-skip.txt" | paste -sd '|')}"
PROCS="${PROCS:-4}"
# Longest time that the specs may take altogether.
TIMEOUT="${TIMEOUT:-1h}"
OUT="${OUT:-$REPO/target/conformance-api}"

need python3 python3
"$REPO/hack/kube-build.sh" agnhost ginkgo e2e.test
"$here/images.sh"

NODE=conformance
# shellcheck source=hack/demo-lib.sh
. "$REPO/hack/demo-lib.sh"
root_in_memory
# shellcheck source=hack/conformance/judge.sh
. "$here/judge.sh"
clean_up_more() { cp "$log" "$OUT/agent.log" 2>/dev/null; }
mkdir -p "$OUT" "$manifests"
agent_arguments=(--api-address 127.0.0.1:0)
start_agent
export KUBECONFIG="$root/kubeconfig"
kubeconfig_is_there() { [ -s "$KUBECONFIG" ]; }
wait_for "$START_SECONDS" "a kubeconfig" kubeconfig_is_there
# The suite asks for the Service of the API server.
"$KUBE_BIN/kubectl" create service clusterip kubernetes --tcp=443:443 >/dev/null

say "running the specs that match $FOCUS; log in $OUT/e2e.log …"
judge e2e.test --kubeconfig="$KUBECONFIG" --kubectl-path="$KUBE_BIN/kubectl" --provider=skeleton \
    --e2e-verify-service-account=false --allowed-not-ready-nodes=0 --num-nodes=1 --minStartupPods=0 \
    --disable-log-dump --node-os-distro=custom
those=()
[ -n "${ONLY:-}" ] || those=(--those "$here/api.txt")
"$here/table.py" "${those[@]}" "$OUT/junit.xml"
