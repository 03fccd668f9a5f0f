# Sourced by the scripts that type the commands of a page: takes the commands from the page, and says whether
# one has printed what the page has. In the page "…" stands for any text; ages, dates, ids, addresses, sizes,
# counts of orders, the use of the disk and the order of lines are not compared. Not to be run.
# shellcheck shell=bash

# What is compared of a text.
stable() {
    sed -E 's/[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+(Z| [+-]?[0-9A-Z]+)?/DATE/g
        s/\b([0-9]+(\.[0-9]+)?(ms|d|h|m|s))+\b/AGE/g
        s/\b[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+\b/IP/g
        s/\b[0-9a-f]{12,64}\b/ID/g
        s/\b[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}\b/DATE/g; s/^[0-9-]+ [0-9:.]+ /DATE /
        s/\b[0-9]+ orders/N orders/g; s/\border [0-9]+/order N/g; s|^[0-9]+ /|N /|
        s/[0-9.]+ ?([kKMG]i?)?B\b/SIZE/g
        s/disk ([0-9]+% used|usage unknown)/disk USED/; s/; (has not run yet|last run AGE ago)/; LAST RUN/
        s/[[:space:]]+/ /g; s/ $//
        /revision [0-9]+ (is being prepared|was started, 0 of)/d'
}
# agrees EXPECTED PRINTED: whether the page has what was printed, in whatever order several things went on.
agrees() { like "$(stable <<<"$1")" "$(stable <<<"$2")" || like "$(stable <<<"$1" | sort)" "$(stable <<<"$2" | sort)"; }
like() {
    local pattern
    pattern="$(sed -e 's/[][\\*?()|!@+<>&;`"$'\''{}#~^]/\\&/g' -e 's/…/*/g' <<<"$1")"
    # A line of dots alone stands for no line, too.
    pattern=$'\n'"$pattern"$'\n'
    pattern="${pattern//$'\n'\*$'\n'/$'\n'\*}"
    # shellcheck disable=SC2053 # it is a pattern
    [[ $'\n'"$2"$'\n' == $pattern ]]
}
# take_command PAGE: the next command of the block at the line `index` of `lines`, in `command`, and what the
# page has it print, in `expected`. Leaves `index` behind both.
take_command() {
    command="${lines[index]}"
    index=$((index + 1))
    [ "${command:0:2}" = '$ ' ] || die "$1:$index: a block begins with a command"
    command="${command:2}"
    if [[ "$command" == *"<<END"* || "$command" == *"<<'END'"* ]]; then
        until [ "${lines[index - 1]}" = END ]; do
            command+=$'\n'"${lines[index]}"
            index=$((index + 1))
        done
    fi
    expected=""
    until [ "${lines[index]}" = '```' ] || [ "${lines[index]:0:2}" = '$ ' ]; do
        expected+="${lines[index]}"$'\n'
        index=$((index + 1))
    done
    expected="${expected%$'\n'}"
}
