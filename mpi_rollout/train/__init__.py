"""The envs of all ranks for a trainer: `connect`, and the vector env that it gives."""
