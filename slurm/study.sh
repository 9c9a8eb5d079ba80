# shellcheck shell=bash disable=SC2154,SC1091  # Variables that the scripts and this file have in common.
# What scaling.sbatch does.  Expects launch.sh; `do_study` restart.sh too.

# What is left of a study, as JSON.
plan_of() { "$PYTHON" -m mpi_rollout scaling "$@" --dry-run --json; }

# What Python prints of a plan: told_of PLAN EXPRESSION, in which `plan` is the plan and `jobs` are its jobs.
told_of() { "$PYTHON" -c "import json, sys; plan = json.loads(sys.argv[1]); jobs = plan['jobs']; print($2)" "$1"; }

jobs_in() { printf 'jobs left: %s' "$(told_of "$1" 'len(jobs)')"; }

# The numbers of ranks of which a study has jobs left, ascending.
ranks_in() { told_of "$1" '*sorted({job["num_ranks"] for job in jobs})'; }

draw() { "$PYTHON" -m mpi_rollout plot "$1" || say "there is no picture of $1, see above; python -m mpi_rollout plot $1 draws it elsewhere"; }

# All of a study of one kind in this job, or in an element of an array that is a number of ranks, that one's part.
do_study() {
    local before most out launcher=()
    out=$(value_of --out "results/$1.json" "$@")
    [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || set -- "$@" --only "$SLURM_ARRAY_TASK_ID"
    prepare_launch
    # All ranks of a small job on one node, as if it were an allocation of its own, and not one on each.
    [ "${start[0]##*/}" != srun ] || start+=("--distribution=block:block,Pack")
    before=$(plan_of "$@") || exit
    if [ -z "$(value_of --launcher '' "$@")" ]; then
        launcher=(--launcher "$("$PYTHON" -c 'import shlex, sys; print(shlex.join(sys.argv[1:]))' "${start[@]}")")
        # srun would wait for room until each job's time is over.
        most=$(told_of "$before" 'max([job["num_ranks"] for job in jobs], default=0)')
        [ "$most" -le "$num_ranks" ] || refuse "--ranks has $most, and this job $num_ranks; sbatch --ntasks=$most, or fewer --ranks"
    fi
    run_and_wait "$PYTHON" -m mpi_rollout scaling "$@" "${launcher[@]}"
    case $code in
    0 | 70) [ -n "$(value_of --only '' "$@")" ] || draw "$out" ;;
    75) go_on "$(jobs_in "$(plan_of "$@")")" "$(jobs_in "$before")" ;;
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
