"""Policies: callables from batched observations to batched actions.

Imports `core`.
"""
