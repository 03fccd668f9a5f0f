#!/usr/bin/env bash
# Kubernetes' own judgement: the e2e specs labelled [NodeConformance], run against an agent that is the
# only Node of a real control plane, on the Engine of DOCKER_HOST. Prints the score, the areas and the
# specs that failed; exit 1 if one fails that a kubelet on Docker passes (baseline.tsv).
#
#   hack/conformance/run.sh
#
# AREA: one area alone (table.py names them). SHORT=1: those of short.txt, of every area but the slow
# ones, of which each has to run and pass. FOCUS, SKIP: regular expressions instead. SLOW=1 runs the two
# [Slow] specs too, one of which takes 27 minutes. PROCS: specs at a time (10; they mostly wait).
# REPEAT: how often the same is run again, until something fails.
# OUT: where reports and logs go. MIRRORLET: the binary to judge, instead of building one.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

AREA="${AREA:-}"
FOCUS="${FOCUS:-\[NodeConformance\]}"
SKIP="${SKIP:-}"
SLOW="${SLOW:-0}"
SHORT="${SHORT:-0}"
PROCS="${PROCS:-10}"
REPEAT="${REPEAT:-0}"
# Longest time that the specs may take altogether.
TIMEOUT="${TIMEOUT:-1h}"
OUT="${OUT:-$REPO/target/conformance}"
here="$REPO/hack/conformance"

need python3 python3
[ -z "$AREA" ] || FOCUS="$("$here/table.py" --focus "$AREA")"
verdict=(--areas --against "$here/baseline.tsv")
if [ "$SHORT" = 1 ]; then
    FOCUS="$("$here/table.py" --focus-those "$here/short.txt")"
    verdict=(--those "$here/short.txt")
fi
[ "$SLOW" = 1 ] || SKIP="${SKIP:+$SKIP|}\[Slow\]"

"$REPO/hack/kube-build.sh" agnhost ginkgo e2e.test
"$here/images.sh"

# shellcheck source=hack/conformance/bed.sh
. "$here/bed.sh"
clean_up_more() { bed_down; }
bed_up

# The spec that pulls from registry.k8s.io gets it from here. It is none of the short ones, which
# change nothing outside their directory.
if [ "$SHORT" != 1 ]; then
    bed_registry registry.k8s.io/e2e-test-images/agnhost:2.59
fi

what="that match $FOCUS${SKIP:+, without $SKIP}"
[ "$SHORT" != 1 ] || what="of hack/conformance/short.txt"
say "running the specs $what; log in $OUT/e2e.log …"
bed_judge e2e.test --kubeconfig="$CLUSTER_DIR/admin.kubeconfig" --provider=skeleton \
    --allowed-not-ready-nodes=0 --num-nodes=1 --minStartupPods=0 --disable-log-dump --node-os-distro=custom
"$here/table.py" "${verdict[@]}" "$OUT/junit.xml"
