"""Every message of a step: MPI as a world, the ways that orders and slots take, and how ranks wait for them.

Only this folder, and the doctor, imports mpi4py.
"""
