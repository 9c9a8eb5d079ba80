"""Studies: how runs scale, a model of their steps, other vector envs beside this one, the best ranks for an env.

What several kinds of study share lies here, each kind in a folder of its own.  Imported by the command line alone.
"""
