"""Studies: how runs scale, a model of their steps, other vector envs beside this one, the best ranks for an env.

Each kind of study has a folder.  What several kinds share lies here; only the command line imports this package.

commands    the command lines of all of them     statistics  of numbers alone
plan        options, order, commands of jobs     model       what a step costs on any number of ranks
jobs        one job, whatever becomes of it      env_probe   one env, measured by itself
workplace   the machine, and a folder            sleeping    an env that only sleeps
tables      rows of dataclasses in HDF5, of text
"""
