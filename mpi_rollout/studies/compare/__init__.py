"""Which vector env is fastest for a user's env on this machine.

turn     how envs are stepped in a turn, and the process that takes one    comparison  turn by turn; the table
systems  what is compared: one list                                        pool        a process pool

Between two turns of a system all others have theirs, so that a machine that gets slower does so for all.  What is
counted are env steps: rows that only reset are none.  `benchmarks/` has more systems, which take the same turns.
"""
