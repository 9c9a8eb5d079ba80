# shellcheck shell=bash disable=SC2154  # Variables that it gets from launch.sh.
# What removes a job's copy of its environment from a node.  launch.sh runs it on each node, as bash -c.
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
