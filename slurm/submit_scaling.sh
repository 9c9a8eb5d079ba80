#!/bin/bash
# Submit a scaling study: a batch job for each number of ranks, and one after all of them that puts the parts together.
#
#     slurm/submit_scaling.sh [--serial] [--one-array] [--dry-run] [--OPTION_OF_SBATCH=VALUE ...] strong|weak --ranks 1,2,4,8 --env ID ...
#
# What follows strong or weak is for `python -m mpi_rollout scaling`.  Settings of the cluster: slurm/site.sh.
#
#     --serial      one job after the other, on nodes that others may use too; without it the jobs run at the same time, each on
#                   nodes that it has to itself
#     --one-array   an array whose elements are all as large as the largest, instead of jobs of different sizes
#     --dry-run     print the commands, submit nothing
#
# When all of them have ended, the same command submits what is left; with --redo-failed at its end, what failed too.

script=submit_scaling.sh
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=slurm/launch.sh
source "$scripts/launch.sh"
# shellcheck source=slurm/study.sh
source "$scripts/study.sh"

serial='' one_array='' dry='' help='' options=()
while [ $# -gt 0 ]; do
    case $1 in
    strong | weak) break ;;
    --serial) serial=1 ;;
    --one-array) one_array=1 ;;
    --dry-run) dry=1 ;;
    -h | --help)
        sed -nE '2,/^$/s/^# ?//p' "${BASH_SOURCE[0]}"
        exit
        ;;
    -n* | --ntasks | --ntasks=* | -a* | --array* | -d* | --dependency*) refuse "$1 is this script's own to choose; leave it out" ;;
    -*) options+=("$1") ;;
    *) refuse "strong or weak is missing before $1; options of sbatch stand before it, as --name=value" ;;
    esac
    shift
done
[ $# -gt 0 ] || refuse "strong or weak is missing; $script strong|weak --ranks 1,2,4 --env ID --out FILE"
kind=$1
shift
arguments=()
for each in "$@"; do
    case $each in
    --dry-run) dry=1 ;;
    -h | --help) help=1 ;;
    *) arguments+=("$each") ;;
    esac
done
exclusive=()
[ -n "$serial" ] || exclusive=(--exclusive)
out=$(value_of --out "results/$kind.json" "${arguments[@]}")

# What is wrong with a study is said here and not after hours in the queue.
read_site
[ -z "$help" ] || exec "$PYTHON" -m mpi_rollout scaling "$kind" --help
plan=$(plan_of "$kind" "${arguments[@]}") || exit
read -ra ranks < <(ranks_in "$plan")
if [ ${#ranks[@]} -eq 0 ]; then
    failed=$(told_of "$plan" 'plan["num_failed"]')
    redo=", but $failed of its jobs failed: the same command with --redo-failed does them again"
    [ "$failed" -gt 0 ] || redo=''
    say "nothing of $out is left to measure$redo; python -m mpi_rollout scaling gather $out puts it together"
    exit 0
fi

# Jobs of the same study would measure the same things twice.  Their numbers stand beside its parts.
numbers=$out.parts/submitted
if [ -r "$numbers" ]; then
    queued=$(squeue --noheader --jobs="$(paste -sd, "$numbers")" --format=%i 2> /dev/null | paste -sd' ')
    [ -z "$queued" ] || refuse "jobs of $out are in the queue already: $queued; wait for their end, or scancel them"
fi

# Submit a job; gives `number`.
submitted=()
submit() {
    if [ -n "$dry" ]; then # Where a command needs the number of a job it has its name.
        printf 'sbatch --parsable' && printf ' %q' "$@" && printf '\n'
        number=${1#--job-name=}
    elif number=$(sbatch --parsable "$@"); then
        number=${number%%;*} # With the name of the cluster behind it where there are several.
        mkdir -p "$out.parts"
        [ ${#submitted[@]} -gt 0 ] || : > "$numbers"
        echo "$number" >> "$numbers"
        say "$number: ${1#--job-name=}"
    else
        [ ${#submitted[@]} -eq 0 ] || { scancel "${submitted[@]}"; rm -f "$numbers"; rmdir "$out.parts" 2> /dev/null; }
        refuse "sbatch refuses ${1#--job-name=}, see above; nothing is left in the queue"
    fi
    submitted+=("$number")
}

batch=$scripts/scaling.sbatch
if [ -n "$one_array" ]; then
    elements=$(IFS=, && printf '%s' "${ranks[*]}")
    submit "--job-name=$kind" "--array=$elements${serial:+%1}" "--output=%x-%a-%A.out" "--ntasks=${ranks[-1]}" \
        "${exclusive[@]}" "${options[@]}" "$batch" "$kind" "${arguments[@]}"
else
    for each in "${ranks[@]}"; do
        after=()
        [ -z "$serial" ] || [ ${#submitted[@]} -eq 0 ] || after=("--dependency=afterany:$number")
        submit "--job-name=$kind-$each" "--ntasks=$each" "${after[@]}" "${exclusive[@]}" "${options[@]}" \
            "$batch" "$kind" "${arguments[@]}" --only "$each"
    done
fi
all=$(IFS=: && printf '%s' "${submitted[*]}")
# afterany: what some jobs have measured is put together too where others failed.
submit "--job-name=$kind-gather" "--dependency=afterany:$all" "${options[@]}" --ntasks=1 "$batch" gather "$out"
