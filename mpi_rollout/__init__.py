"""Collect reinforcement-learning experience over MPI ranks into one HDF5 file.

Importing this package starts no MPI and reads no file: it works on a login node.
"""

__version__ = "0.1.0"

from mpi_rollout.connection import connect

__all__ = ["connect"]
