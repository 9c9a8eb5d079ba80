"""Conformance tests of the seams, for our own guests and for yours: each tries the contract of one protocol.

They need no test framework, and but for that of transports no MPI launcher: a test of your own calls one with an object
of yours.  AssertionError says which sentence of the contract does not hold.
"""
