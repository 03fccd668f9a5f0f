#!/usr/bin/env bash
# Has libFuzzer look for inputs that break what reads bytes of others (crates/fuzz).
#
#   hack/fuzz.sh                     every target, FUZZ_SECONDS (210) for all together
#   hack/fuzz.sh TARGET [SECONDS]    one target, for 60 seconds
#   hack/fuzz.sh --list              the targets
#
# Coverage comes from LLVM's own pass, by flags of the stable compiler; libFuzzer's C++ sources are in
# the crate libfuzzer-sys and need a C++ compiler. There is no sanitizer: the code forbids `unsafe`.
# A target starts with its corpus in crates/fuzz/corpus and with what earlier runs found, which is kept
# in target/fuzz/found. On a finding it exits with 1, and prints where the input is and how it is
# played again.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Most memory of a target, in MiB, and longest time for one input, in seconds.
RSS_MIB=2048
INPUT_SECONDS=20
# Largest input, in bytes.
INPUT_BYTES=8192

cd "$REPO"
corpus=crates/fuzz/corpus
mapfile -t all < <(cd "$corpus" && printf '%s\n' */ | tr -d /)

case "${1:-}" in
--list)
    printf '%s\n' "${all[@]}"
    exit 0
    ;;
"")
    targets=("${all[@]}")
    seconds=$((${FUZZ_SECONDS:-210} / ${#all[@]}))
    ;;
*)
    [ -d "$corpus/$1" ] || die "there is no target $1; there are: ${all[*]}"
    targets=("$1")
    seconds="${2:-60}"
    ;;
esac
((seconds > 0)) || die "less than a second for each target: give more"

need c++ g++
host="$(rustc -vV | awk '$1 == "host:" { print $2 }')"
flags="-Cpasses=sancov-module -Ccodegen-units=1"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-coverage-$option"
done
# Of its own, since everything is built with these flags.
build="${CARGO_TARGET_DIR:-target}/fuzz"
RUSTFLAGS="$flags" CARGO_TARGET_DIR="$build" ${CARGO:-cargo} build --locked --quiet \
    --profile fuzz --target "$host" --package mirrorlet-fuzz --features libfuzzer --bin fuzz
program="$build/$host/fuzz/fuzz"

failed=()
for target in "${targets[@]}"; do
    found="$build/found/$target"
    crashes="$build/crashes/$target"
    mkdir -p "$found" "$crashes"
    log="$build/$target.log"
    say "$target: $seconds s …"
    if FUZZ_TARGET="$target" "$program" "$found" "$corpus/$target" \
        -artifact_prefix="$crashes/" -max_total_time="$seconds" -timeout="$INPUT_SECONDS" \
        -rss_limit_mb="$RSS_MIB" -max_len="$INPUT_BYTES" -print_final_stats=1 >"$log" 2>&1; then
        # Inputs tried, and features of the program that they reached.
        runs="$(awk '$1 == "stat::number_of_executed_units:" { print $2 }' "$log")"
        reached="$(grep -o 'ft: [0-9]*' "$log" | tail -n 1)"
        say "$target: ${runs:-?} inputs, ${reached:-ft: ?}"
    else
        tail -n 30 "$log" >&2
        input="$(grep -o "Test unit written to .*" "$log" | tail -n 1 | cut -d ' ' -f 5)"
        failed+=("$target")
        say "error: $target: ${input:-no input was written}; whole log: $log"
        [ -z "$input" ] \
            || say "play it again: FUZZ_TARGET=$target FUZZ_INPUT=$(realpath "$input") cargo test --package mirrorlet-fuzz"
    fi
done
[ "${#failed[@]}" = 0 ] || die "inputs were found: ${failed[*]}"
