# shellcheck shell=bash disable=SC2154  # Variables that it gets from launch.sh.
# What unpacks a job's copy of its environment on a node, and removes it.  launch.sh runs it on each node, as bash -c.
#
# Expects in the environment `staged`, the path of the copy, and `alive`, the numbers of this user's jobs with a blank
# before and behind each, empty if they are not known.

# What jobs have left that are no more, as after the loss of a node, and an earlier start of this one.
remove_old() {
    local old number
    for old in "${staged%-*}"-*; do
        number=${old##*-}
        number=${number%%.*}
        [[ $number =~ ^[0-9]+$ && -O $old && ! -L $old ]] || continue
        if [ "$number" = "${staged##*-}" ] || { [ -n "$alive" ] && [[ $alive != *" $number "* ]]; }; then rm -rf "$old"; fi
    done
}

# Make the copy of the file that was sent here.  It could be mounted instead, by squashfuse; but when SLURM kills what is on
# a node, a mount stays without the process that serves it, and then nothing below its folder can be removed.
unpack() {
    mkdir -m 700 "$staged" || return
    case $(head -c 4 "$staged.image" | tr -d '\0') in
    hsqs) unpack_squashfs ;;
    *) tar -xf "$staged.image" -C "$staged" ;;
    esac || return
    rm -f "$staged".*
    # It writes where the copy is into programs and libraries of conda: MPI finds its parts by that.
    [ ! -e "$staged/bin/conda-unpack" ] || "$staged/bin/python" "$staged/bin/conda-unpack"
}

unpack_squashfs() {
    if ! command -v unsquashfs > /dev/null; then
        echo "$(uname -n) has no unsquashfs (package squashfs-tools); an IMAGE.tar needs none: bash slurm/pack.sh IMAGE.tar" >&2
        return 1
    fi
    unsquashfs -no-progress -no-xattrs -force -dest "$staged" "$staged.image" > /dev/null
}

# Wait for the end of the job: a signal from SLURM, or the end of the input, which the batch script holds open.
keep() {
    trap leave TERM
    read -r _
    leave
}

leave() {
    trap '' TERM
    for _ in {1..100}; do # Ranks that stop in good order still import.
        is_in_use || break
        sleep 0.2
    done
    rm -rf "$staged" "$staged".*
    exit
}

is_in_use() {
    local process words
    for process in /proc/[0-9]*/cmdline; do
        mapfile -d '' -t words 2> /dev/null < "$process"
        [[ ${words[*]} != *"$staged"* ]] || return 0
    done
    return 1
}
