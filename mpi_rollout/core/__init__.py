"""Values: which rank has which envs, how spaces become bytes, seeds, clocks, what the host has.

No messages and no files.
"""
