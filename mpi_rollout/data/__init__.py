"""Reading what runs have written: `mpi_rollout.open`.  Neither MPI nor the env is needed.

Exports and other readers see a file only through `RunData`: its columns, episodes and attributes.
"""
