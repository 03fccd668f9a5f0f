#!/usr/bin/env bash
# Plants faults in a copy of the program, one at a time, and counts those that the simulation finds.
#
#   hack/mutants.sh [NAME…]   names of hack/mutants/, without number and suffix; all by default
#   hack/mutants.sh --check   only checks that every fault can still be planted
#
# The copy has all of them, each switched off: it is built once, optimised. SIMULATION_SEEDS says how
# many lives each fault may survive. It fails where a fault survives whose patch doesn't say so, with
# "Not found:" and the reason. Not a part of `make test`, but for --check.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

CARGO="${CARGO:-cargo}"
export SIMULATION_SEEDS="${SIMULATION_SEEDS:-1500}"
export CARGO_TARGET_DIR="${MUTANTS_TARGET_DIR:-$REPO/target/mutants}"
export RUST_BACKTRACE=0
# Longest time for one fault, in seconds: it may be one that makes the agent hang.
DEADLINE=300

scratch="$(mktemp -d)"
finish() {
    git worktree remove --force "$scratch/tree" 2>/dev/null || true
    rm -rf "$scratch"
}
trap finish EXIT
git worktree add --quiet --detach "$scratch/tree" HEAD
for patch in hack/mutants/*.patch; do
    git -C "$scratch/tree" apply --index "$REPO/$patch" || { echo "$patch does not apply any more" >&2; exit 1; }
done
[ "${1:-}" != --check ] || exit 0

program="$(cd "$scratch/tree" && "$CARGO" test --locked --profile quick --no-run --test house 2>&1 | tee /dev/stderr \
    | sed -n 's/.*Executable.*(\(.*\))$/\1/p')"
[ -n "$program" ]
simulate() {
    (cd "$scratch/tree" && CARGO_MANIFEST_DIR="$scratch/tree" MUTANT="$1" \
        timeout "$DEADLINE" "$program" simulation::whatever) >"$scratch/out" 2>&1
}

simulate "" || { cat "$scratch/out"; echo "lives fail without any fault" >&2; exit 1; }
all=("$@")
if [ ${#all[@]} = 0 ]; then
    for patch in hack/mutants/*.patch; do
        name="$(basename "$patch" .patch)"
        [ "${name#*-}" = switch ] || all+=("${name#*-}")
    done
fi
found=0 unexpected=0
for name in "${all[@]}"; do
    if simulate "$name"; then
        why="$(sed -n 's/^Not found: //p' hack/mutants/*-"$name".patch)"
        [ -n "$why" ] || unexpected=$((unexpected + 1))
        echo "survived  $name: ${why:-nobody knows why}"
    else
        found=$((found + 1))
        why="$(sed -n '/panicked at/{n;p;q}' "$scratch/out" | cut -c1-100)"
        echo "found     $name: ${why:-it hangs}"
    fi
done
echo "found $found of ${#all[@]}"
[ "$unexpected" = 0 ]
