"""The HDF5 file: how it is made, filled, committed, closed, read, checked and recovered.

This folder alone imports h5py.  Others write by `writer`, read by `stored_run`, check by `verification` and recover by
`recovery`; another kind of store would be written and read by one more module here.  Only the root, and commands that
read files, import these: a worker imports no more than `status` and `values`.
"""
