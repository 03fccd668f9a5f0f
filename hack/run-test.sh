#!/usr/bin/env bash
# Runs a test program for cargo: several tests at a time, and in the end says which took longest.
#
#   CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$PWD/hack/run-test.sh cargo test
#
# What failed tests printed is added to the file FAILURES, where that is set.
set -euo pipefail

# How many of the slowest tests are named, and from how many seconds on.
SLOWEST=8
SLOW_SECONDS=2

program="$1"
# What has no test harness, a benchmark say, knows none of its options.
grep -q --text report-time "$program" || exec "$@"
name="$(basename "$program")"
name="${name%-*}"
# Their tests mostly wait, for containers, graces and servers.
case "$name" in
agent | cluster | engine | faults) threads=$((3 * $(nproc))) ;;
*) threads=$(nproc) ;;
esac
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$threads}"

said="$(mktemp)"
trap 'rm -f "$said"' EXIT
began=$SECONDS
status=0
# The harness times its tests only where unstable options are allowed.
RUSTC_BOOTSTRAP=1 "$@" -Z unstable-options --report-time | tee "$said" | sed --unbuffered -E 's/ <[0-9.]+s>$//' || status=$?
slow="$(sed -n -E 's/^test (.*) \.\.\. [a-zA-Z]+ <([0-9.]+)s>$/\2 \1/p' "$said" | sort -rn \
    | awk -v most="$SLOWEST" -v least="$SLOW_SECONDS" 'NR <= most && $1 >= least { printf "%8.1f s  %s\n", $1, $2 }')"
printf '%s: %s s, %s tests at a time\n' "$name" "$((SECONDS - began))" "$RUST_TEST_THREADS"
[ -z "$slow" ] || printf '%s\n' "$slow"
if [ "$status" != 0 ] && [ -n "${FAILURES:-}" ]; then
    {
        printf '== %s\n' "$name"
        sed -n '/^---- .* stdout ----$/,/^failures:$/p' "$said"
    } >>"$FAILURES"
fi
exit "$status"
