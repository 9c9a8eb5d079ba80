# shellcheck shell=bash disable=SC2154,SC1091  # Variables that the scripts and this file have in common.
# What strong_scaling.sbatch and weak_scaling.sbatch do.  Expects launch.sh and restart.sh.

# How many jobs of a study are left, in words.
jobs_left() {
    local commands
    commands=$("$PYTHON" -m mpi_rollout scaling "$@" --dry-run 2> /dev/null) || return
    printf 'jobs left: %s' "$(grep --count --invert-match -e '^$' -e '-warm-up\.h5' <<< "$commands")"
}

draw() { "$PYTHON" -m mpi_rollout plot "$1" || say "there is no picture of $1, see above; python -m mpi_rollout plot $1 draws it elsewhere"; }

# All of a study of one kind in this job, or in an element of an array that is a number of ranks, that one's part.
do_study() {
    local before out launcher=()
    out=$(value_of --out "results/$1.h5" "$@")
    [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || set -- "$@" --only "$SLURM_ARRAY_TASK_ID"
    prepare_launch
    # All ranks of a small job on one node, as if it were an allocation of its own, and not one on each.
    [ "${start[0]##*/}" != srun ] || start+=("--distribution=block:block,Pack")
    [ -n "$(value_of --launcher '' "$@")" ] || launcher=(--launcher "$(printf '%q ' "${start[@]}")")
    before=$(jobs_left "$@")
    run_and_wait "$PYTHON" -m mpi_rollout scaling "$@" "${launcher[@]}"
    case $code in
    0 | 70) [ -n "$(value_of --only '' "$@")" ] || draw "$out" ;;
    75) go_on "$(jobs_left "$@")" "$before" ;;
    esac
    exit "$code"
}

# Put together what other jobs have measured.
gather() {
    local code
    read_site
    "$PYTHON" -m mpi_rollout scaling gather "$1"
    code=$?
    case $code in 0 | 70 | 75) draw "$1" ;; esac
    exit "$code"
}
