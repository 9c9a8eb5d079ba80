"""Scaling studies: how much faster more ranks are, how sure that is, and what holds them back.

study       what it is: points, order, commands            statistics  of numbers alone
machine     where it is done                               analysis    from samples to figures
jobs        one job, whatever becomes of it                report      as text
samples     what jobs gave                                 figures     as pictures
file        all of that in HDF5
runner      does the study
tables, workplace          what every kind of study shares: tables in HDF5; the folder that a study has to itself
"""
