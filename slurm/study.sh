# shellcheck shell=bash disable=SC2154,SC1091  # Variables that the scripts and this file have in common.
# What strong_scaling.sbatch and weak_scaling.sbatch do.  Expects launch.sh; `do_study` restart.sh too.

# The commands of the jobs of a study that are left, and how many they are, in words.
commands_left() { "$PYTHON" -m mpi_rollout scaling "$@" --dry-run; }
jobs_in() { printf 'jobs left: %s' "$(grep --count --invert-match -e '^$' -e '-warm-up\.h5' <<< "$1")"; }

# The numbers of ranks of which a study has jobs left, ascending, from its commands.
ranks_in() { sed -nE 's/.* -n ([0-9]+) .* -m mpi_rollout run .*/\1/p' <<< "$1" | sort -nu; }

draw() { "$PYTHON" -m mpi_rollout plot "$1" || say "there is no picture of $1, see above; python -m mpi_rollout plot $1 draws it elsewhere"; }

# All of a study of one kind in this job, or in an element of an array that is a number of ranks, that one's part.
do_study() {
    local before most out launcher=()
    out=$(value_of --out "results/$1.h5" "$@")
    [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || set -- "$@" --only "$SLURM_ARRAY_TASK_ID"
    prepare_launch
    # All ranks of a small job on one node, as if it were an allocation of its own, and not one on each.
    [ "${start[0]##*/}" != srun ] || start+=("--distribution=block:block,Pack")
    before=$(commands_left "$@") || exit
    if [ -z "$(value_of --launcher '' "$@")" ]; then
        launcher=(--launcher "$("$PYTHON" -c 'import shlex, sys; print(shlex.join(sys.argv[1:]))' "${start[@]}")")
        # srun would wait for room until each job's time is over.
        most=$(ranks_in "$before" | tail -n 1)
        [ "${most:-0}" -le "$num_ranks" ] || refuse "--ranks has $most, and this job $num_ranks; sbatch --ntasks=$most, or fewer --ranks"
    fi
    run_and_wait "$PYTHON" -m mpi_rollout scaling "$@" "${launcher[@]}"
    case $code in
    0 | 70) [ -n "$(value_of --only '' "$@")" ] || draw "$out" ;;
    75) go_on "$(jobs_in "$(commands_left "$@")")" "$(jobs_in "$before")" ;;
    *) [ -z "$asked" ] || [ "$code" -lt 128 ] || stopped_early ;;
    esac
    exit "$code"
}

# Put together what other jobs have measured.
gather() {
    local code
    [ -n "${1:-}" ] || refuse "gather needs the file of a study; $script gather FILE"
    read_site
    "$PYTHON" -m mpi_rollout scaling gather "$1"
    code=$?
    case $code in 0 | 70 | 75) draw "$1" ;; esac
    exit "$code"
}
