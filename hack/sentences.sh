#!/usr/bin/env bash
# Prints twenty sentences at random from the help of all commands, the messages in the code (errors, events,
# conditions, logs) and the documents, each with its place, to be read aloud: would an engineer say it?
#
#   hack/sentences.sh [SEED]   a seed (default 13) draws the same twenty on every machine, as long as no
#                              sentence is added, changed or removed
#
# The help is printed by the program that MIRRORLET names, by default the debug build.
set -euo pipefail
# shellcheck source=hack/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seed="${1:-13}"
[[ "$seed" =~ ^[0-9]{1,9}$ && $# -le 1 ]] || die "usage: hack/sentences.sh [SEED]; a seed is a number"
program="${MIRRORLET:-${CARGO_TARGET_DIR:-$REPO/target}/debug/mirrorlet}"
[ -x "$program" ] || die "there is no program $program; make build makes it"
program="$(realpath "$program")"
cd "$REPO"
# One order of lines, and one width of help, everywhere.
export LC_ALL=C COLUMNS=100

# How many sentences of each kind are drawn, and how few words are no sentence.
DRAWN="help=6 message=7 docs=7"
WORDS_MIN=6

# The sentences in the help of a command, and in that of the commands below it.
help_of() {
    local text command
    text="$("$program" "$@" --help)"
    awk -v kind=help -v place="mirrorlet${*:+ $*}" -v words_min="$WORDS_MIN" -f hack/sentences.awk <<<"$text"
    while read -r command; do
        help_of "$@" "$command"
    done < <(awk '/^[A-Z]/ { is_list = $0 == "Commands:" }
        is_list && /^  [a-z]/ && $1 != "help" { print $1 }' <<<"$text")
}

# files KIND ENDING PATH…: the sentences of the files with that ending at these places, without those of tests.
files() {
    local kind="$1" ending="$2"
    shift 2
    find "$@" -type f -name "*.$ending" -print0 \
        | grep -z -v -E '^crates/(testing|fuzz)/|(^|/)(tests|proptests|fake|bed)(/|\.rs$)|^docs/pod-spec\.md$' \
        | xargs -0 awk -v kind="$kind" -v words_min="$WORDS_MIN" -f hack/sentences.awk
}

# Each sentence once, with the first of its places. The generator is that of Park and Miller: the random
# numbers of awk and shuf are their own on each machine.
{
    help_of
    files message rs src crates/*/src
    files docs md README.md CONTRIBUTING.md docs
} | sort -t $'\t' -k 1,1 -k 3,3 -k 2,2 \
    | awk -F '\t' -v seed="$seed" -v drawn="$DRAWN" '
        $1 FS $3 != last { last = $1 FS $3; lines[$1, ++count[$1]] = $1 ", " $2 ": " $3 }
        function random(below) { state = state * 16807 % 2147483647; return state % below }
        END {
            state = seed % 2147483646 + 1
            for (i = 0; i < 10; i++) random(1)
            of = split(drawn, kinds, " ")
            for (k = 1; k <= of; k++) {
                split(kinds[k], parts, "=")
                kind = parts[1]
                if (count[kind] < parts[2]) exit 1
                for (i = 1; i <= parts[2]; i++) {
                    j = i + random(count[kind] - i + 1)
                    print "- " lines[kind, j]
                    lines[kind, j] = lines[kind, i]
                }
            }
        }' || die "too few sentences were found"
