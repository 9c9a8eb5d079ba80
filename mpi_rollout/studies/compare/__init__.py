"""Which vector env is fastest for a user's env on this machine.

stepping  what a turn is, and how envs are stepped in it     point       the process that gives one system one turn
systems   what is compared: one list                         comparison  turn by turn, in random order; the table
pool      a process pool                                     command     the command line

Each turn has a process of its own, or a job of its own for systems on ranks: it makes the envs, resets them, steps a
little and then for the window.  Between two turns of a system all others have theirs, so that a machine that gets
slower does so for all.  What is counted are env steps: rows that only reset are none.  The actions are drawn before.
`benchmarks/` at the top level of a checkout has more systems, which take the same turns.
"""
