"""Values: which rank has which envs, how spaces become bytes, seeds, clocks.

No messages and no files.
"""
