"""Values: which rank has which envs, how spaces become bytes, seeds, clocks, cores, memory.

No messages and no files.  Imports `process` and `errors`.
"""
