# shellcheck shell=bash disable=SC2034,SC2154  # Variables that the scripts and this file have in common.
# Ranks in all components of a heterogeneous job.  Expects launch.sh, restart.sh and train_rank.py.

unset MPI_ROLLOUT_RANK_0 # Not what some variable of that name holds: rank 0 writes there.

# Add to `start` the options and the program of each component, one after the other.
start_components() {
    local group tasks cpus
    MPI_ROLLOUT_RANK_0=$(mktemp) || refuse "no room for a file in ${TMPDIR:-/tmp}" # It is on the node of this script.
    export MPI_ROLLOUT_RANK_0
    for ((group = 0; group < SLURM_HET_SIZE; group++)); do
        tasks=SLURM_NTASKS_HET_GROUP_$group cpus=SLURM_CPUS_PER_TASK_HET_GROUP_$group
        [ "$group" -eq 0 ] || start+=(:)
        start+=("--het-group=$group" --job-name=ranks)
        add_srun_options "${!cpus:-1}"
        start+=(-n "${!tasks:-1}" env "OMP_NUM_THREADS=${!cpus:-1}" "OPENBLAS_NUM_THREADS=${!cpus:-1}" "MKL_NUM_THREADS=${!cpus:-1}" "$@")
    done
}

# Run the ranks of all components, which `start` has; gives `code`.
#
# Before SLURM 24.11 an srun of several components with --mpi=pmix at times does not end when all of its ranks have (two
# of its threads wait for the end of the same third one), and the job would be there until its time limit.
run_components() {
    local watch told
    begin "${start[@]}"
    end_after_ranks "$running" &
    watch=$!
    wait_for_end
    kill "$watch" 2> /dev/null
    told=$(cat "$MPI_ROLLOUT_RANK_0")
    if wait "$watch" 2> /dev/null; then # It has ended srun, whose own code says nothing.
        code=$(code_of_ranks)
        [ "$told:$code" != 0:75 ] || code=0 # SLURM still has that of the start before.
    fi
    [ "$told" != 75 ] || code=75 # srun ends the other components' ranks when those of one have ended.
    rm -f "$MPI_ROLLOUT_RANK_0"
}

# End srun when its step has begun, and is gone at two looks in a row that SLURM has answered.
end_after_ranks() {
    local steps missed=0
    while [ "$missed" -lt 2 ]; do
        sleep 10
        kill -0 "$1" 2> /dev/null || return # It has ended by itself.
        [ -s "$MPI_ROLLOUT_RANK_0" ] || continue
        steps=$(squeue --noheader --steps --job="$(ids_of_components)" --format=%j 2> /dev/null) || continue
        case $steps in
        *ranks*) missed=0 ;;
        *) missed=$((missed + 1)) ;;
        esac
    done
    trap '' TERM
    say "all ranks have ended and srun has not; it is ended here"
    kill -KILL "$1"
}

ids_of_components() {
    local group id
    for ((group = 0; group < SLURM_HET_SIZE; group++)); do
        id=SLURM_JOB_ID_HET_GROUP_$group
        printf '%s,' "${!id}"
    done
}

# The worst exit code of the steps, as SLURM was told by those that watch the ranks on the nodes.
code_of_ranks() {
    scontrol --details show job "$SLURM_JOB_ID" | sed -nE 's/^ *DerivedExitCode=([0-9]+):([0-9]+).*/\1 \2/p' \
        | awk '{ code = $2 ? 128 + $2 : $1; if (code > worst) worst = code } END { print NR ? worst + 0 : 1 }'
}
