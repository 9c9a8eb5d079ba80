"""Comparing this program with the vector envs that people use, on the same cores, in the same minutes.

comparison  what is measured: envs, sizes, order; the file   analysis     from samples to figures
systems     what is compared                                 multiples    how many times a bare loop
reasons     where a system does not apply                    published    figures of what is not measured here
forms       an env in another form                           report       as text
pythons     where a system is installed                      figures      as pictures; and loop_figure
turns       what a turn is                                   runner       does the comparison
setups      what a system is made of                         processes    the same, as the comparison sees it
makers      how Gymnasium's, SB3's, our envs are made     server       the process that has a system's envs
native_makers   the same of envs in another form             runs         this program's run, in turns
peers       the same of other libraries, a module each       pool         a process pool, the missing middle
steppers    how envs are stepped and counted                 all_cores    the same in a process for each core

*The point.*  One env id and one number of envs.  All systems are set up for it, some at a time; then repeat by repeat
each has its turn, in another random order each time, so that a machine that gets slower does so for all.  A turn takes
a fraction of a second; to start processes for it, imports and `gymnasium.make` would take most of the time.  So a
system's processes are started once for an env id, and make their envs anew for each number of them.  The bare loop is
measured at every point, since it is what the others are compared with.

*Waiting processes are stopped.*  Ranks spin while they wait, and so may others' threads.  All processes of a system
that has no turn are stopped by SIGSTOP, and continued for their turn; the first sweeps of a turn are dropped.  Stopped
processes do not notice that the comparison was killed: so all processes have a mark in their environment, and a child
of the comparison outlives it until it has ended all that have the mark.

*The turn.*  A reset of all envs, timed by itself; sweeps that are dropped; then sweeps until the window is over, the
last one whole.  A sweep is a step of all envs, or with first ready systems what one `recv` brings.  The actions are
drawn before, the same for all systems.  The bare loop is what a person would write: `env.step` in a loop, `env.reset`
where an episode ended, on one core; on all cores at once it is the limit of what steps unmodified envs.

Each system is used as its documentation shows it, with its defaults, infos included.  Samplers (RLlib, Sample Factory,
TorchRL's collector, and `run` of this program) choose their actions while the clock runs.

*Another Python* may have a system, whose versions of Gymnasium and NumPy are others.  It runs `server`, `setups`,
`turns` and the module of `peers`, which need NumPy and any Gymnasium; the rest of this program is not imported there.

*What is counted* are env steps: transitions.  Where a system resets in the step after an episode's end, as Gymnasium
and EnvPool do, such rows are not counted; where it resets in the same step, as Stable-Baselines3 does, all rows are.
Resets within the window take time from every system alike.

*Recorders* store all that they step: Minari's DataCollector and this program, which are compared with each other.  The
window of both ends when all of its steps are stored; if that takes long beside the window, they look slower than they
are in a long run.  The files are dropped.

*What it says.*  Env steps per second, medians and intervals over repeats, which are turns of one start; their ratios to
the bare loop of the same point; and the overhead of a step of the batch, t_os, from the seconds that N transitions
take: N t_row + t_os.  So fps / fps_loop = N t_env / (N t_row + t_os), with t_env of the bare loop.  Where t_row is
t_env, as on one core that does nothing besides stepping, this is the law that is usually fitted.  On p cores t_row goes
down to t_env / p, and what a system does for each row adds to it: so it is fitted too.

*What fails* does not end the comparison: a system that fails or hangs at a point is ended with all its processes, kept
with its error, and started anew for the next point.  What does not apply is skipped, with the reason.  The file is
written after each repeat, and the same command goes on from there.

Not here: policies on the ranks, since all systems get random actions.
"""
