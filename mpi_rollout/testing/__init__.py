"""Tests of what is plugged into mpi_rollout, for everybody's own classes: each tries the contract of one protocol.

They need no test framework and no MPI launcher: a test of your own calls one with an object of yours.  AssertionError
says which sentence of the contract does not hold.
"""
