"""Policies: callables from batched observations to batched actions.

A policy gets arrays of shape (num_envs, ...) that are its own: it may keep them, and write into them.
`torch.from_numpy` takes them without a copy.

What reads the file of a policy raises UsageError if the file is damaged, is none of its kind, does not fit the spaces
of the envs, has nothing to draw from, or has something that only a trusted file may have.
"""
