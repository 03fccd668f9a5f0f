# Sourced after lib.sh by the scripts that run Kubernetes' own specs. Not to be run. Set before: OUT,
# FOCUS, SKIP, PROCS, TIMEOUT.
# shellcheck shell=bash

# judge PROGRAM ARGUMENT…: runs the specs of a test program that FOCUS and SKIP choose, PROCS at a
# time, TIMEOUT at the longest, with these arguments of its own. Its verdict is $OUT/junit.xml, all that
# it says besides is in $OUT/e2e.log.
judge() {
    local began=$SECONDS program="$1"
    shift
    rm -f "$OUT"/junit.xml
    (cd "$OUT" && "$KUBE_BIN/ginkgo" --procs="$PROCS" --repeat="${REPEAT:-0}" --timeout="$TIMEOUT" \
        --no-color --silence-skips --keep-going --focus="$FOCUS" ${SKIP:+--skip="$SKIP"} \
        --output-dir="$OUT" --junit-report=junit.xml \
        "$KUBE_BIN/$program" -- --report-dir="$OUT/reports" "$@") >"$OUT/e2e.log" 2>&1 || true
    [ -s "$OUT/junit.xml" ] || { tail -n 20 "$OUT/e2e.log" >&2; die "the specs made no report; whole log: $OUT/e2e.log"; }
    say "the specs took $((SECONDS - began)) s"
}
