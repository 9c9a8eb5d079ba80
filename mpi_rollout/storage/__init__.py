"""The HDF5 file: how it is made, filled, committed, closed, read, checked and recovered.

Only the root, and commands that read files, import h5py: a worker imports no more than `status` and `values`.
"""
