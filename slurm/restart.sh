# shellcheck shell=bash disable=SC2154  # Variables that the scripts and this file have in common.
# How a batch job ends: told to stop before its time limit, it stops in good order and goes back into the queue.
#
# Expects launch.sh.  Gives `run_and_wait`, `go_on` and `asked`, the signal that told the job to stop.

# Which job this is: the number of an array's last element is also that of the whole array.
job_id=${SLURM_JOB_ID:-}
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job_id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

# bash heeds a signal while it waits, but not while it runs a program: so the program is in the background.  USR1 in
# either case, since Open MPI's mpirun kills its ranks a quarter of a second after a SIGTERM.
asked='' running=''
heed() { asked=$1; [ -z "$running" ] || kill -USR1 "$running" 2> /dev/null; }
trap 'heed USR1' USR1
trap 'heed TERM' TERM

# A program that has hardly begun dies of a signal.
stopped_early() {
    say "stopped by SIG$asked before the ranks had begun; give the job more --time, then the same sbatch command starts it"
    exit 75
}

# Run a program to its end; gives `code`.
run_and_wait() { begin "$@"; wait_for_end; }

begin() {
    [ -z "$asked" ] || stopped_early
    "$@" &
    running=$!
}

wait_for_end() {
    wait "$running"
    code=$?
    while [ "$code" -gt 128 ] && kill -0 "$running" 2> /dev/null; do # A trap has ended the wait.
        wait "$running"
        code=$?
    done
    running=''
}

# Put the job back into the queue, if that will get it further: how far it is, in words, and how far it was.
go_on() {
    if [ "$asked" != TERM ] && [ "$1" = "$2" ]; then # It would go on like this for ever.
        say "this start got nothing done: $1, as before; give the job more --time, then the same sbatch command continues it"
        exit 75
    fi
    go_back "$1"
}

# Put the job back into the queue, if it may: how far it is, in words.
go_back() {
    if [ "$asked" = TERM ]; then # scancel, preemption, `scontrol requeue`: SLURM does what it was told to do with the job.
        say "stopped by SIGTERM, $1; unless SLURM starts the job again, the same sbatch command continues it"
        exit 75
    fi
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "${MAX_RESTARTS:-100}" ]; then
        say "$1 after ${SLURM_RESTART_COUNT:-0} restarts, and MAX_RESTARTS is ${MAX_RESTARTS:-100}; the same sbatch command continues it"
        exit 75
    fi
    if scontrol show job "$job_id" | grep -q '^ *Requeue=0 '; then
        say "$1; the job was submitted with --no-requeue, so it ends here; the same sbatch command continues it"
        exit 75
    fi
    say "$1; back into the queue"
    clean_up
    scontrol requeue "$job_id" || { say "SLURM does not put the job back; the same sbatch command continues it"; exit 75; }
    trap - TERM USR1
    # A script that ended now might count as the end of the job.
    sleep 60
}
