"""This program beside the vector envs that people use: each in its own process, on the same cores, in the same minutes.

systems     what is compared, and where it does not apply   samples     what was measured, as rows
comparison  what is measured: envs, sizes, order            file        all of that in HDF5
pool        a process pool, the missing middle              analysis    from samples to figures
steppers    one system's envs, stepped and counted          report      as text
makers      how each system's envs are made                 figures     as pictures
recording   this program's recording, in turns              estimate    how long it will take
process     the process that has them                       runner      does the comparison
processes   the same, seen by who compares                  command     its options

*The point.*  One env id and one number of envs.  All systems are set up for it, some at a time; then repeat by repeat
each has its turn, in another random order each time, so that a machine that gets slower does so for all.  A sample of
a fraction of a second is too short to start processes for, and imports and `gymnasium.make` would be
most of the time: so a system's processes are started once for an env id and make their envs anew
for each number of them.  The bare loop is measured at every point, since it is what the others are compared with.

*Who waits is stopped.*  Ranks spin while they wait, and so may others' threads.  All processes of a system that has no
turn are stopped by SIGSTOP, and continued for their turn; the first sweeps of a turn are dropped.  What is stopped
does not notice that the comparison was killed: so all processes have a mark in their environment, and a child of the
comparison outlives it for as long as it takes to end those that have it.

*The turn.*  A reset of all envs, timed by itself; sweeps that are dropped; then sweeps until the window is over, the
last one whole.  A sweep is a step of all envs, or with first ready systems what one `recv` brings.  The actions are
drawn before, the same for all systems.  The bare loop is what a person would write: `env.step` in a loop, `env.reset`
where an episode ended, on one core; on all cores at once it is the limit of what steps unmodified envs.

Each system is used as its documentation shows it, with its defaults: so those that give infos give them.

*What is counted* are env steps: transitions.  Where a system resets in the step after an episode's end, as Gymnasium
and EnvPool do, such rows are not counted; where it resets in the same step, as Stable-Baselines3 does, all rows are.
Resets within the window take time from every system alike.

*Who records* stores all that it steps, Minari's DataCollector and this program: they are compared with each other.  The
window of both ends when all of its steps are stored; a window that is short beside that makes them look slower than
they are in a long run.  The files are dropped.

*What it says.*  Env steps per second, medians and intervals over repeats, which are turns of one
start; each over the bare loop of the same point;
and the overhead of a step of the batch, t_os, from the seconds that N transitions take: N t_row + t_os.  So
fps / fps_loop = N t_env / (N t_row + t_os), with t_env of the bare loop.  Where t_row is t_env, as on one core that
does nothing besides stepping, this is the law that is usually fitted.  On p cores t_row goes down to t_env / p, and
what a system does for each row adds to it: so it is fitted too.

*What fails* does not end the comparison: a system that fails or hangs at a point is ended with all its processes, kept
with its error, and started anew for the next point.  What does not apply is skipped, with the reason.  The file is
written after each repeat, and the same command goes on from there.

Not here: worker inference, which this program does not have; other machines' figures.
"""
