"""Scaling studies: how much faster more ranks are, how sure that is, and what holds them back.

study       what it is: points, order, commands            statistics  of numbers alone
machine     where it is done                               analysis    from samples to figures
jobs        one job, whatever becomes of it                report      as text
samples     what jobs gave                                 figures     as pictures
tables      rows of dataclasses in HDF5, whole files
file        all of that in HDF5
runner      does the study
parts       puts one together that was done in parts
workplace   the folder that a study has to itself

model       what a step costs on any number of ranks       env_probe   one env, measured by itself
sim         carries the model to many ranks, checks it     sleeping    an env that only sleeps
"""
