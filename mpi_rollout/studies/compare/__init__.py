"""Which vector env is fastest for a user's env on this machine.

stepping  what a turn is, and how envs are stepped in it     point       the process that gives one system one turn
systems   what is compared: one list                         comparison  turn by turn, in random order; the table
pool      a process pool

Between two turns of a system all others have theirs, so that a machine that gets slower does so for all.  What is
counted are env steps: rows that only reset are none.  `benchmarks/` has more systems, which take the same turns.
"""
