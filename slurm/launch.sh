# shellcheck shell=bash disable=SC2034,SC2154  # Variables that the scripts and this file have in common.
# What the batch scripts have in common: settings, launcher, node-local copy.  They source it; it is not submitted.
#
# Expects `scripts`, the folder of this file, and `script`, the name of the one that runs.  `prepare_launch` gives
#     start     array: the command that starts a program on ranks, up to their number (-n) and the program
#     PYTHON    that program
#     num_ranks
# and has `clean_up` called at the end.

checks=() # A command that looks whether what is to run could, before anything is started on ranks.
staged='' # Not what some variable of that name holds: `clean_up` removes it.

say() { printf '%s: %s\n' "$script" "$1" >&2; }
refuse() { say "$1"; exit 78; } # A wrong launch or configuration, as the program has it.

# The value of an option among arguments, or else another: value_of --out run.h5 ARGUMENTS...
value_of() {
    local option=$1 found=$2
    shift 2
    while [ $# -gt 0 ]; do
        case $1 in
        "$option"=*) found=${1#"$option="} ;;
        "$option") found=${2:-} ;;
        esac
        shift
    done
    printf '%s' "$found"
}

read_site() {
    local site=${MPI_ROLLOUT_SITE:-$scripts/site.sh}
    [ -r "$site" ] || refuse "no settings of this cluster in $site; cp $scripts/site.example.sh $scripts/site.sh and edit it, or export MPI_ROLLOUT_SITE=FILE"
    unset LAUNCHER BIND STAGE IMAGE MAX_RESTARTS # Names that an environment may have for other things.
    # shellcheck source=slurm/site.example.sh
    source "$site" || refuse "$site has failed; see above, and try it on the login node: source $site"
    set +eu # Its own affair; these scripts look at exit codes themselves.
    case ${MAX_RESTARTS:-0} in *[!0-9]*) refuse "MAX_RESTARTS in $site must be a number, got $MAX_RESTARTS" ;; esac
    case ${STAGE:-/} in /*) ;; *) refuse "STAGE in $site must be a folder such as /tmp, got $STAGE" ;; esac
    case ${IMAGE:-/} in /*) ;; *) refuse "IMAGE in $site must be a file with its whole path, got $IMAGE" ;; esac
    [ -z "${IMAGE:-}" ] || [ -n "${STAGE:-}" ] || refuse "IMAGE in $site needs a folder that each node has for itself; STAGE=/tmp"
    PYTHON=$(command -v python) || refuse "there is no python; have $site activate the virtual environment of mpi_rollout"
}

count_ranks() {
    # Without --ntasks SLURM sets no number of tasks, and srun would start one on each node.
    num_ranks=${SLURM_NTASKS:-$((${SLURM_JOB_NUM_NODES:-1} * ${SLURM_NTASKS_PER_NODE:-0}))}
    [ "$num_ranks" -gt 0 ] || refuse "the number of ranks is missing; sbatch --ntasks=N, or --nodes=N --ntasks-per-node=M"
    cpus_per_rank=${SLURM_CPUS_PER_TASK:-1}
}

set_environment() {
    # A step takes --cpus-per-task from the job in some releases and not in others (22.05 to 23.02).
    export SRUN_CPUS_PER_TASK=$cpus_per_rank
    # After `sbatch --export=NONE` the ranks would get an empty environment too.
    export SLURM_EXPORT_ENV=ALL
    export MPI_ROLLOUT_BIND=${BIND:-} # For the doctor.
    # NumPy's threads: as many as the node has cores, in each rank.
    export OMP_NUM_THREADS=$cpus_per_rank OPENBLAS_NUM_THREADS=$cpus_per_rank MKL_NUM_THREADS=$cpus_per_rank
    # The same order of sets on all ranks and in all runs; a training script is not started again with it.
    export PYTHONHASHSEED=${PYTHONHASHSEED:-0}
    # Python holds back what it prints to a log for as long as it likes.
    export PYTHONUNBUFFERED=1
    # `make install` has Open MPI start more ranks than a machine has cores, which would all be on the first node.
    export PRTE_MCA_rmaps_default_mapping_policy=slot
}

find_library() {
    local told
    told=$("$PYTHON" "$scripts/mpi_library.py" 2>&1) || [ -n "${asked:-}" ] || refuse "$PYTHON cannot import mpi_rollout and load MPI: $(tail -n 1 <<< "$told"); have site.sh load the modules and activate the virtual environment"
    { read -r vendor && read -r library && read -r mpiexec; } < <(tail -n 3 <<< "$told")
}

choose_launcher() {
    local told plugin own
    case $vendor:$library in
    "Open MPI":*) own=pmix ;;
    *CRAY*) own='cray_shasta pmi2' ;;
    *) own=pmi2 ;;
    esac
    [[ $library != *Intel* ]] || find_pmi_library
    if [ -n "${LAUNCHER:-}" ]; then
        eval "start=($LAUNCHER)" # Words with quotes, as in any line of that file.
        add_options
        starts_ranks || refuse "LAUNCHER='$LAUNCHER' starts no ranks of $library that find each other ($(tail -n 1 <<< "$told")); leave it out, or LAUNCHER='srun --mpi=${own%% *}' in site.sh (see srun --mpi=list), or LAUNCHER='${mpiexec/#-/mpirun}'"
        return
    fi
    for plugin in $(default_plugin) $own; do
        start=(srun "--mpi=$plugin")
        add_options
        ! starts_ranks || return 0
    done
    [ "$mpiexec" != - ] || refuse "nothing starts ranks of $library: srun --mpi=$plugin does not work here ($(tail -n 1 <<< "$told")) and there is no mpiexec; set LAUNCHER in site.sh"
    unset I_MPI_PMI_LIBRARY # Which is for srun alone.
    start=("$mpiexec")
    add_options
    say "srun --mpi=$plugin does not work here, so $mpiexec starts the ranks"
}

# What this site's srun takes, if it takes any.
default_plugin() { scontrol show config 2> /dev/null | sed -nE 's/^MpiDefault *= *([^ ]*)$/\1/p' | grep -v -e '^none$' -e '^(null)$'; }

# Under srun, Intel MPI needs SLURM's own library; without it each rank would be a world of its own.
find_pmi_library() {
    local folder each
    [ -z "${I_MPI_PMI_LIBRARY:-}" ] || return 0
    folder=$(scontrol show config 2> /dev/null | sed -nE 's/^PluginDir *= *([^:]*).*/\1/p')
    for each in "${folder%/*}" /usr/lib64 /usr/lib/x86_64-linux-gnu /opt/slurm/lib64 /opt/slurm/lib; do
        [ ! -e "$each/libpmi2.so" ] || { export I_MPI_PMI_LIBRARY=$each/libpmi2.so && return; }
    done
}

# Whether `start` makes one world of two ranks; `told` is what they have said.  The wrong plugin makes each rank a world
# of its own, or aborts, and one that is in `srun --mpi=list` may not find its library on the nodes.
starts_ranks() {
    local most=$((num_ranks > 1 ? 2 : 1)) try=("${start[@]}")
    [ "${start[0]##*/}" != srun ] || try+=(--overlap) # The next step need not wait for the end of this one.
    try+=(-n "$most" "$PYTHON" -c 'from mpi4py import MPI; MPI.COMM_WORLD.rank or print("a world of", MPI.COMM_WORLD.size)')
    for _ in 1 2; do # Open MPI's start crashes at times.
        told=$(timeout 120 "${try[@]}" 2>&1)
        case $told in
        *"a world of $most"*) return 0 ;;
        *"a world of"*) return 1 ;;
        *ModuleNotFoundError:* | *ImportError:*) refuse "a node lacks a Python module ($(grep -oE '[A-Za-z]*Error: .*' <<< "$told" | tail -n 1)); have the virtual environment where all nodes find it" ;;
        esac
        [ -z "${asked:-}" ] || return 0
    done
    return 1
}

add_options() {
    case ${start[0]##*/}:${SLURM_HET_SIZE:-1} in
    srun:1) add_srun_options "$cpus_per_rank" ;;
    srun:*) ;; # Each component has its own.
    *:1) add_mpiexec_options "$vendor" ;;
    *) refuse "${start[0]} does not start ranks in the components of a heterogeneous job, srun --mpi=pmix or --mpi=pmi2 does where SLURM has that plugin" ;;
    esac
}

add_srun_options() {
    # --kill-on-bad-exit: where the site has it off, the ranks wait for one that was killed until the time limit.
    start+=("--cpus-per-task=$1" --kill-on-bad-exit=1 --unbuffered)
    case ${start[*]} in *--cpu-bind*) ;; *) start+=("--cpu-bind=${BIND:-cores}") ;; esac
}

add_mpiexec_options() {
    [ -z "${LAUNCHER:-}" ] || return 0
    case $1:${BIND:-cores} in
    "Open MPI:none") start+=(--map-by slot --bind-to none) ;;
    "Open MPI:"*) start+=(--map-by "slot:PE=$cpus_per_rank" --bind-to core) ;;
    *:none) ;;
    *) start+=(-bind-to "core:$cpus_per_rank") ;;
    esac
}

# Where they are: the environment of $PYTHON, the package, which may be a link to its sources, and what else is installed.
find_environment() {
    { read -r environment && read -r package && read -r modules; } < <("$PYTHON" -c 'import os, sys, sysconfig, mpi_rollout
print(sys.prefix, os.path.dirname(mpi_rollout.__file__), sysconfig.get_path("purelib"), sep="\n")')
}

# Put the environment into one file, of the kind that its name tells, with the package beside `bin` and `lib`.
pack() {
    local environment package modules
    find_environment || return
    case $1 in
    *.sqsh | *.squashfs)
        mksquashfs "$environment" "$1" -noappend -no-progress > /dev/null \
            && mksquashfs "$package" "$1" -keep-as-directory -no-recovery -no-progress > /dev/null
        ;;
    *) tar --create --auto-compress --file="$1" --directory="$environment" . --directory="${package%/*}" mpi_rollout ;;
    esac
}

# An image that cannot be read is refused.  One that is older than what it was made of is taken all the same.
look_at_image() {
    local environment package modules newer
    [ -n "${IMAGE:-}" ] || return 0
    [[ -f $IMAGE && -r $IMAGE ]] || refuse "cannot read $IMAGE (IMAGE in site.sh); bash $scripts/pack.sh makes it, once, and without IMAGE each job packs the environment for itself"
    find_environment || return 0
    newer=$(find "$package" "$modules"/*.dist-info \( -name '*.dist-info' -prune -o -name '*.py' \) -newer "$IMAGE" -print -quit 2> /dev/null)
    [ -z "$newer" ] || say "$IMAGE is older than $newer; the job goes on with what is in the image, and bash $scripts/pack.sh makes a new one"
}

# Thousands of ranks that import from one file system take minutes: copy the environment to each node first, as one file.
stage_environment() {
    local image modules
    [ -n "${STAGE:-}" ] || return 0
    if [ "${SLURM_HET_SIZE:-1}" -gt 1 ]; then
        say "nothing is copied to $STAGE, since this is a heterogeneous job"
        return 0
    fi
    keep_no_copies
    image=${IMAGE:-$staged.tar}
    if ! { { [ -n "${IMAGE:-}" ] || pack "$image"; } && sbcast --force "$image" "$staged.image" \
        && on_each_node "$(< "$scripts/staged.sh"); unpack" && modules=$(modules_of_copy); }; then
        refuse "cannot copy ${IMAGE:-the environment} to $STAGE on each node (STAGE in site.sh); see above"
    fi
    PYTHON=$staged/bin/python
    # The copy of the package comes before the sources, also where these are in the current folder.
    export PYTHONSAFEPATH=1 PYTHONPATH=$staged:$modules:$PWD${PYTHONPATH:+:$PYTHONPATH}
}

# Where modules are in the copy, if it is whole: it may be of an image that something else has made.
modules_of_copy() {
    "$staged/bin/python" -c 'import os, sys, sysconfig
modules = sysconfig.get_path("purelib")
if not any(os.path.isdir(os.path.join(folder, "mpi_rollout")) for folder in (sys.argv[1], modules)):
    sys.exit("there is no mpi_rollout in " + modules)
print(modules)' "$staged"
}

# Remove older copies, and start on each node what removes this one, however the job ends.
keep_no_copies() {
    export staged=$STAGE/mpi_rollout-$SLURM_JOB_ID alive
    alive=$(squeue --noheader --user="$(id -un)" --format=' %A ') || alive=''
    on_each_node "$(< "$scripts/staged.sh"); remove_old"
    exec {open}> >(on_each_node "$(< "$scripts/staged.sh"); keep")
    keeper=$!
    trap clean_up EXIT
}

clean_up() {
    [ -n "$staged" ] || return 0
    staged=''
    exec {open}>&-
    wait "$keeper"
}

on_each_node() { srun --mpi=none --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=1 bash -c "$1"; }

prepare_launch() {
    read_site
    [ "${SLURM_HET_SIZE:-1}" -eq 1 ] || [ "$script" = train.sbatch ] || refuse "this job would be the first component of a heterogeneous job alone; submit it as one of a single component"
    count_ranks
    set_environment
    find_library
    look_at_image
    [ ${#checks[@]} -eq 0 ] || "${checks[@]}"
    choose_launcher
    stage_environment
}
