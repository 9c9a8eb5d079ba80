# shellcheck shell=bash disable=SC2034
# Settings of this cluster.  cp slurm/site.example.sh slurm/site.sh, and edit that.
#
# It is sourced twice: by you before you submit (`source slurm/site.sh`), for what sbatch must know, and by each job.

# --- what sbatch must know: any of its options, as a variable of that name
# export SBATCH_PARTITION=standard
# export SBATCH_ACCOUNT=project
# export SBATCH_TIMELIMIT=04:00:00
# export SBATCH_HINT=nomultithread        # a rank for each core, not for each of its hardware threads
#     A job that may start with less time, e.g. before a maintenance, starts sooner, and continues itself:
#     sbatch --time=24:00:00 --time-min=01:00:00 ...

# --- where the program is
# source /etc/profile                     # where batch jobs do not know `module`
# module purge; module load python openmpi
# source "$HOME/mpi_rollout/.venv-system/bin/activate"  # which `make install MPI=system` has made
#     or of conda:
# source "$HOME/miniforge3/etc/profile.d/conda.sh"; conda activate mpi_rollout

# --- or in a container: one file instead of thousands, which ranks by the hundreds would all read.  `python` is then a
#     script in a folder that all nodes see; the MPI inside must be of the kind that the launcher starts.
# PATH=$HOME/rollout:$PATH               # there a file `python`, chmod +x:
#                                        #   #!/bin/sh
#                                        #   exec apptainer exec --bind "$SCRATCH" "$HOME/rollout/rollout.sif" python "$@"

# --- on Lustre, a folder whose files are spread over several disks: once, before the first run
# lfs setstripe --stripe-count 8 --stripe-size 16M "$SCRATCH/rollouts"

# --- what starts the ranks, up to the number of them.  Without it: srun with the plugin of the MPI that mpi4py loads,
#     or if that is not there the mpiexec of that MPI.
# LAUNCHER="srun --mpi=pmix_v4"
# LAUNCHER="mpirun --map-by slot --bind-to core"

# --- none, where nodes are shared, or where SLURM says that binding is not supported
# BIND=cores

# --- a folder that each node has for itself: the virtual environment is copied there before the ranks start.  For
#     hundreds of ranks and more, which would all import from the file system that they have in common.
# STAGE=/tmp
#     One file that holds it, of which each job copies only that.  Make it once, and again after each installation:
#     bash slurm/pack.sh.  A .sqsh needs mksquashfs there and unsquashfs on the nodes, a .tar or .tar.gz nothing; or what
#     conda-pack has made of an environment with mpi_rollout in it.
# IMAGE=$SCRATCH/rollout.sqsh

# --- how often a job that was stopped in time may put itself back into the queue.  One that took no step never does.
# MAX_RESTARTS=100
