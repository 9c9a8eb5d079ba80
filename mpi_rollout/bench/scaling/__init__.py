"""Scaling studies: how much faster more ranks are, how sure that is, and what holds them back.

study       points, order, the file and its parts      report      as text and as a picture
samples     what jobs gave, as rows                    runner      does the study
analysis    from samples to figures

A simulation carries the model to numbers of ranks that no machine is at hand for, and checks it where one is.

simulation  what is asked, the jobs that measure constants and check the model, the file
fitting     constants, from the samples or from a study
curves      what follows, and how far measurements are from it
simulation_report, simulation_runner    as of a study
"""
