#!/usr/bin/env bash
# Runs a test program for cargo: several tests at a time, and in the end says which took longest.
#
#   CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$PWD/hack/run-test.sh cargo test
#
# A program that takes too long is ended, and its tests that had no end count as failed. What failed
# tests printed is added to the file FAILURES, where that is set. Up to AGAIN failed tests that meet an
# Engine or a cluster run once more, on their own; one that passes then is named in the file FLAKY, and
# is a defect to look into all the same. AGAIN=0 has the first result count. Programs whose name matches
# EXCEPT, or does not match ONLY, are left to another call of cargo.
set -euo pipefail

# How many of the slowest tests are named, and from how many seconds on.
SLOWEST=8
SLOW_SECONDS=2
# Twice what the longest takes on two slow cores.
PROGRAM_SECONDS="${PROGRAM_SECONDS:-1800}"
AGAIN="${AGAIN:-20}"
# Thrown by dice: what fails once is found, and may never fail again.
DICE='^corruption::'

program="$1"
name="$(basename "$program")"
name="${name%-*}"
[ -z "${ONLY:-}" ] || [[ "$name" =~ ^($ONLY)$ ]] || exit 0
[ -z "${EXCEPT:-}" ] || ! [[ "$name" =~ ^($EXCEPT)$ ]] || exit 0
# What has no test harness, a benchmark say, knows none of its options.
grep -q --text report-time "$program" || exec "$@"
# Their tests mostly wait, for containers, graces and servers, and share the machine with those.
case "$name" in
agent | cluster | engine | faults) threads=$((3 * $(nproc))) ;;
streaming) threads=$(nproc) ;;
*)
    threads=$(nproc)
    AGAIN=0
    ;;
esac
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$threads}"

said="$(mktemp)"
trap 'rm -f "$said"' EXIT

# What the tests print is shown, and kept in the file `said`. The harness times its tests only where
# unstable options are allowed.
run() {
    local status=0
    RUSTC_BOOTSTRAP=1 timeout --foreground --kill-after=30 "$PROGRAM_SECONDS" \
        "$@" -Z unstable-options --report-time | tee "$said" | sed --unbuffered -E 's/ <[0-9.]+s>$//' || status=$?
    return "$status"
}

# timeout's two statuses.
had_no_end() { [ "$status" = 124 ] || [ "$status" = 137 ]; }

# results RESULT: the tests whose result is told and matches the expression, one a line.
results() {
    sed -n -E "s/^test (.*) \\.\\.\\. $1.*/\\1/p" "$said" | sed 's/ - should panic$//' | sort
}

# failed COMMAND…: the tests of that run that failed, one a line; all without a result, when its time was
# over.
failed() {
    results FAILED
    ! had_no_end || comm -23 <("$@" --list --format terse | sed -n 's/: test$//p' | sort) <(results '[a-zA-Z]')
}

# keep_failures WHEN TEST…: what the failed tests printed.
keep_failures() {
    [ -n "${FAILURES:-}" ] || return 0
    {
        printf '== %s: %s\n' "$1" "${*:2}"
        sed -n '/^---- .* stdout ----$/,/^failures:$/p' "$said"
    } >>"$FAILURES"
}

began=$SECONDS
status=0
run "$@" || status=$?
slow="$(sed -n -E 's/^test (.*) \.\.\. [a-zA-Z]+ <([0-9.]+)s>$/\2 \1/p' "$said" | sort -rn \
    | awk -v most="$SLOWEST" -v least="$SLOW_SECONDS" 'NR <= most && $1 >= least { printf "%8.1f s  %s\n", $1, $2 }')"
printf '%s: %s s, %s tests at a time\n' "$name" "$((SECONDS - began))" "$RUST_TEST_THREADS"
[ -z "$slow" ] || printf '%s\n' "$slow"
! had_no_end || printf 'error: %s had no end after %s s\n' "$name" "$PROGRAM_SECONDS"
[ "$status" != 0 ] || exit 0
mapfile -t tests < <(failed "$@")
keep_failures "$name" "${tests[@]}"

# What ended otherwise crashed: no test says why.
[ "$status" = 101 ] || had_no_end || exit "$status"
if printf '%s\n' "${tests[@]}" | grep -q -E "$DICE"; then
    exit "$status"
fi
if [ "${#tests[@]}" = 0 ] || [ "${#tests[@]}" -gt "$AGAIN" ]; then
    exit "$status"
fi
printf '%s: once more, on their own: %s\n' "$name" "${tests[*]}"
again=0
RUST_TEST_THREADS=2 run "$program" --exact "${tests[@]}" || again=$?
if [ "$again" != 0 ]; then
    keep_failures "$name, once more"
    exit "$status"
fi
# A name that is no test any more would pass, too.
passed="$(results ok | wc -l)"
[ "$passed" = "${#tests[@]}" ] || { printf 'error: %s of %s ran once more\n' "$passed" "${#tests[@]}"; exit "$status"; }
printf '%s: passed the second time: %s\n' "$name" "${tests[*]}"
[ -z "${FLAKY:-}" ] || printf '%s\n' "${tests[@]/#/$name: }" >>"$FLAKY"
