#!/usr/bin/env bash
# All tests of `make test`, once Engine, Kubernetes and images are there. Ends, also after a failure or
# a Ctrl-C, with a look at what they left on this machine, which is a failure, too.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

CARGO="${CARGO:-cargo}"
MAKE="${MAKE:-make}"

# How many lines of what failed tests printed are repeated at the end.
REPEATED=400

before="$(mktemp)"
FAILURES="$(mktemp)"
FLAKY="$(mktemp)"
# What the checks print that run beside the compiler, and the tests that run beside others.
checked="$(mktemp)"
computed="$(mktemp)"
besides="$(mktemp)"
export FAILURES FLAKY
# Those of whoever calls this would leave programs out.
unset ONLY EXCEPT
hack/left.sh sweep
hack/left.sh before "$before"
# TMPDIR of the tests, removed at the end: a test that is cut off leaves its directories. Like /tmp it is for
# all users, and its name is short, because the path of a socket has 107 bytes. `hack/left.sh sweep` reads
# the process id in it.
scratch="$(mktemp -d "${TMPDIR:-/tmp}/mt.$$.XXX")"
chmod 1777 "$scratch"
watch=""
checking=""
computing=""
beside=""
# end_group PID: ends what runs beside, with all its children, and waits for that.
end_group() {
    [ -n "$1" ] || return 0
    kill -TERM -- "-$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}
finish() {
    local status=$?
    trap - EXIT INT TERM
    [ -z "$watch" ] || kill "$watch" 2>/dev/null || true
    end_group "$checking"
    end_group "$computing"
    end_group "$beside"
    [ -z "$computing" ] || cat "$computed"
    used
    hack/left.sh after "$before" "$scratch" || [ "$status" != 0 ] || status=1
    hack/left.sh remove "$scratch" || [ "$status" != 0 ] || status=1
    # Of a long output only the end is seen.
    if [ -s "$FAILURES" ]; then
        echo "== What the failed tests printed, without backtraces:"
        grep -vE '^ +[0-9]+: |^ +at |^stack backtrace:|^note: ' "$FAILURES" | tail -n "$REPEATED"
    fi
    if [ -s "$FLAKY" ]; then
        echo "== Flaky: failed, and passed the second time, each a defect of product, test or machine:"
        cat "$FLAKY"
    fi
    rm -f "$before" "$FAILURES" "$FLAKY" "$checked" "$computed" "$besides"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Seconds of all processors since the machine's start: at work, and altogether.
processors() { awk '/^cpu / { hz = 100; all = $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9; print (all - $5 - $6) / hz, all / hz }' /proc/stat; }
read -r busy_before all_before < <(processors)
# When everything had been compiled.
built=0
# How long it took, and whether the machine had been able to do more in that time.
used() {
    local busy all
    read -r busy all < <(processors)
    [ "$built" != 0 ] || built=$SECONDS
    awk -v s="$SECONDS" -v c="$built" -v b="$busy" -v b0="$busy_before" -v a="$all" -v a0="$all_before" 'BEGIN {
        printf "== %d s, %d of them for checks and the compiler", s, c
        printf "; the processors were busy for %.0f %% of it\n", 100 * (b - b0) / (a - a0)
    }'
}

hack/engine-watch.sh "$FAILURES" &
watch=$!

# rustfmt and the chart keep one processor busy, and the compiler doesn't always have work for two.
# With groups of their own, so that they can be ended with their children.
set -m
{ "$MAKE" fmt scripts versions && "$MAKE" chart; } >"$checked" 2>&1 </dev/null &
checking=$!
set +m
lint=0
"$MAKE" lint || lint=$?
checks=0
wait "$checking" || checks=$?
checking=""
cat "$checked"
[ "$lint" = 0 ] || exit "$lint"
[ "$checks" = 0 ] || exit "$checks"
# Each test program by way of hack/run-test.sh. Those with an Engine or a cluster, one after the other: two
# at a time keep two cores no busier, and tests that mostly wait then wait in vain. Those that mostly
# compute, and those alone, beside them, with what they leave of the processors. Benches have no tests;
# clippy has compiled them.
COMPUTE='house|mirrorlet_apimachinery|mirrorlet_compose|mirrorlet_core|projects'
host="$(rustc --version --verbose | sed -n "s/^host: //p" | tr a-z- A-Z_)"
tested() { env TMPDIR="$scratch" "CARGO_TARGET_${host}_RUNNER=$REPO/hack/run-test.sh" "$CARGO" test --locked --workspace "$@"; }
ALL=(--lib --bins --tests --examples)
tested "${ALL[@]}" --no-run
built=$SECONDS
set -m
{
    renice -n "$(($(nice) + 5))" -p "$BASHPID" >/dev/null || true
    ONLY="$COMPUTE" tested "${ALL[@]}" --no-fail-fast
} >"$computed" 2>&1 </dev/null &
computing=$!
set +m
status=0
EXCEPT="$COMPUTE" tested "${ALL[@]}" --no-fail-fast || status=$?
computed_status=0
wait "$computing" || computed_status=$?
computing=""
cat "$computed"
[ "$status" = 0 ] || exit "$status"
[ "$computed_status" = 0 ] || exit "$computed_status"
# While Kubernetes' specs mostly wait: kubectl against the embedded API, once more with the oldest version
# that we know, and the examples of the documentation. Of the whole workspace, so that nothing is built
# with other features.
set -m
{
    KUBECTL_VERSION="$KUBECTL_OLDEST" RUST_TEST_THREADS=3 tested --test cluster -- embedded:: embedded_kubectl::
    TMPDIR="$scratch" "$CARGO" test --locked --workspace --doc
} >"$besides" 2>&1 </dev/null &
beside=$!
set +m
# The program that the tests had.
MIRRORLET="${CARGO_TARGET_DIR:-$REPO/target}/debug/mirrorlet" "$MAKE" conformance-short || status=$?
besides_status=0
wait "$beside" || besides_status=$?
beside=""
cat "$besides"
[ "$status" != 0 ] || status="$besides_status"
exit "$status"
