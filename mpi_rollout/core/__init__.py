"""Values: which rank has which envs, how spaces become bytes, seeds.

No messages and no files.
"""
