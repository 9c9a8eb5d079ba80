"""Studies: how runs scale, the best ranks for an env, other vector envs beside this one.

A study is points, each measured several times by jobs of their own: a sample each, with the machine and the base case
in one file.  Only the command line imports this package.

commands    the command lines of all of them     study           what is asked, and the file that holds it
plan        options, order, commands of jobs     runner          job after job, from where it was stopped
jobs        one job, whatever becomes of it      scaling         strong and weak scaling, as a whole or in parts
machine     the machine, and a folder            figures         from samples to figures, for two readers:
samples     what a job gave                      report          text, and `picture`
statistics  of numbers alone                     tune, compare   other questions, asked in the same way
"""
