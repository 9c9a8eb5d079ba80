"""Policies: callables from batched observations to batched actions.

A policy gets arrays of shape (num_envs, ...) that are its own: it may keep them, and write into them.
`torch.from_numpy` takes them without a copy.
"""
