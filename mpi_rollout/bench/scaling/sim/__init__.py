"""Carrying the model to numbers of ranks that no machine is at hand for, and checking it where one is.

simulation  what is asked, the jobs that measure constants and check the model, the file
fitting     constants, from the samples or from a study
analysis    curves, and how far measurements are from them
report      as text
figures     as a picture
runner      does it
"""
