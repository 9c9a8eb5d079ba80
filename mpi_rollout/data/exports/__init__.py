"""What other programs read: Minari's data sets, D4RL's files, RLDS's steps.

Each is written in one pass over the data, through `mpi_rollout.open`.  No other package is needed.
"""
