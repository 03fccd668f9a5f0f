# Told on standard input, one a line, of what a test program makes; removes it when the program has
# ended. Words are separated by tabs:
#
#   bed DOCKER DIR          root of an agent, its file `owner`, and what that owner has on the Engine and
#                           in the kernel: rules of host ports, cgroups of pods
#   reused DIR PROGRAM      a bed's DIR that later programs have, too: this one's while its id is in the file `program`
#   owner DOCKER OWNER      what an owner has on the Engine, and its rules of host ports
#   container DOCKER NAME   image DOCKER NAME   network DOCKER NAME   volume DOCKER NAME
#   dir DIR                 with all that is mounted below it
#   dockerd DIR             an Engine of a test's own: its processes, and the directory
#   link NAME               a network interface
#   cgroup DIR              a control group, whose programs have ended
#   address CIDR LABEL      on lo
#
# What is reused is removed only where it still is this program's: an address, which the next cluster
# on this machine may have, by its label, which holds the process id; an image of a registry only while
# nobody listens at the registry's port.
export PATH="$PATH:/usr/sbin:/sbin"
trap '' INT HUP TERM
reused="" owners="" containers="" images="" networks="" volumes="" dirs="" dockerds="" links="" addresses="" cgroups=""
while IFS=$'\t' read -r kind one two; do
    case "$kind" in
    bed) dirs+="$two"$'\n' owners+="$one"$'\t'"$two/owner"$'\n' ;;
    reused) reused+="$one"$'\t'"$two"$'\n' ;;
    owner) owners+="$one"$'\t'"$two"$'\n' ;;
    container) containers+="$one"$'\t'"$two"$'\n' ;;
    image) images+="$one"$'\t'"$two"$'\n' ;;
    network) networks+="$one"$'\t'"$two"$'\n' ;;
    volume) volumes+="$one"$'\t'"$two"$'\n' ;;
    dir) dirs+="$one"$'\n' ;;
    dockerd) dirs+="$one"$'\n' dockerds+="$one"$'\n' ;;
    link) links+="$one"$'\n' ;;
    cgroup) cgroups+="$one"$'\n' ;;
    address) addresses+="$one"$'\t'"$two"$'\n' ;;
    esac
done
while IFS=$'\t' read -r dir program; do
    [ -n "$dir" ] && [ "$(cat "$dir/program" 2>/dev/null)" != "$program" ] || continue
    dirs="$(grep -v -x -F "$dir" <<<"$dirs")" owners="$(grep -v -F "$dir/owner" <<<"$owners")"
done <<<"$reused"

# Engines of tests' own go first, with all they run. Only they name the directory.
while read -r dir; do
    [ -n "$dir" ] || continue
    for process in /proc/[0-9]*; do
        tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q -E "^[^ ]*(dockerd|containerd)[^ ]* .*$dir" \
            && kill -KILL "${process#/proc/}"
    done
done <<<"$dockerds" 2>/dev/null

# docker HOST ARGUMENT…: nothing for an Engine that is gone.
engine() {
    local host="$1"
    shift
    case "$host" in unix://*) [ -S "${host#unix://}" ] || return 0 ;; esac
    timeout 60 docker -H "$host" "$@" 2>/dev/null
}

# The containers of all owners on one Engine.
owned() {
    engine "$1" ps --all --no-trunc --format '{{.ID}} {{.Label "mirrorlet.dev/owner"}}' \
        | awk 'NR == FNR { owners[$1]; next } $2 in owners { print $1 }' <(printf '%s\n' "$2") -
}
owners="$(while IFS=$'\t' read -r host owner; do
    [ ! -f "$owner" ] || owner="$(tr -d '[:space:]' <"$owner")"
    [ -z "$owner" ] || printf '%s\t%s\n' "$host" "$owner"
done <<<"$owners")"
while read -r host; do
    [ -n "$host" ] || continue
    theirs="$(awk -F '\t' -v host="$host" '$1 == host { print $2 }' <<<"$owners")"
    # A call of an agent that was killed may be carried out late: until none has come for a second.
    for _ in 1 2 3 4 5; do
        ids="$(owned "$host" "$theirs")"
        if [ -z "$ids" ]; then
            sleep 1
            ids="$(owned "$host" "$theirs")"
            [ -n "$ids" ] || break
        fi
        # shellcheck disable=SC2086 # one argument an id
        engine "$host" rm --force --volumes $ids >/dev/null
    done
    # The volumes of claims.
    claimed="$(engine "$host" volume ls --format '{{.Name}} {{.Label "mirrorlet.dev/owner"}}' \
        | awk 'NR == FNR { owners[$1]; next } $2 in owners { print $1 }' <(printf '%s\n' "$theirs") -)"
    # shellcheck disable=SC2086 # one argument a name
    [ -z "$claimed" ] || engine "$host" volume rm $claimed >/dev/null
done < <(cut -f 1 <<<"$owners" | sort -u)
# Rules of host ports, where there is something that removes them.
! command -v nft >/dev/null || while IFS=$'\t' read -r _ owner; do
    [ -z "$owner" ] || nft delete table ip "mirrorlet-${owner//[^a-zA-Z0-9]/_}"
done <<<"$owners"
# Cgroups of pods, which an Engine without systemd never removes.
while read -r dir; do
    [ -n "$dir" ] || continue
    for pod in "$dir"/pods/*; do
        rmdir /sys/fs/cgroup/{,*/}mirrorlet/{,burstable/,besteffort/}"pod${pod##*/}" 2>/dev/null
    done
done <<<"$dirs"
while IFS=$'\t' read -r host name; do [ -z "$name" ] || engine "$host" rm --force --volumes "$name"; done <<<"$containers"
while IFS=$'\t' read -r host name; do
    [ -n "$name" ] || continue
    registry="${name%%/*}"
    case "$registry" in
    127.0.0.1:*) ! (exec 3<>"/dev/tcp/127.0.0.1/${registry#*:}") 2>/dev/null || continue ;;
    esac
    engine "$host" rmi "$name"
done <<<"$images"
while IFS=$'\t' read -r host name; do [ -z "$name" ] || engine "$host" network rm "$name"; done <<<"$networks"
while IFS=$'\t' read -r host name; do [ -z "$name" ] || engine "$host" volume rm "$name"; done <<<"$volumes"

while read -r link; do [ -z "$link" ] || ip link del "$link" 2>/dev/null; done <<<"$links"
while read -r group; do [ -z "$group" ] || rmdir "$group" 2>/dev/null; done <<<"$cgroups"
# The kernel compares the label, too.
while IFS=$'\t' read -r address label; do
    [ -z "$label" ] || ip addr del "$address" dev lo label "$label" 2>/dev/null
done <<<"$addresses"
while read -r dir; do
    [ -n "$dir" ] && [ -e "$dir" ] || continue
    # What was mounted last goes first.
    awk -v dir="$dir" '$2 == dir || index($2, dir "/") == 1 { print $2 }' /proc/self/mounts | tac \
        | while read -r mount; do umount --lazy "$mount"; done
    rm -rf --one-file-system -- "$dir"
done <<<"$dirs"
