"""Carrying the model to numbers of ranks that no machine is at hand for, and checking it where one is.

question    what is asked: envs, ranks, fragments; the jobs that measure constants and check the model
constants   where the constants come from
file        question, constants and all samples in HDF5
fitting     constants from the samples
analysis    curves, and how far measurements are from them
report      as text
figures     as a picture
runner      does it
"""
