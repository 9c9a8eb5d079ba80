"""Studies: how runs scale, the best ranks for an env, other vector envs beside this one.

A study is points, each measured several times by jobs of their own: a sample each, with the machine and the base case
in one file.  Only the command line imports this package.

commands  the command lines of all of them       study_file  the file that holds a study with its samples
jobs      options and order of jobs              scaling     job after job, as a whole or in parts
study     what is asked, and what a job gave     report      from samples to figures, by `statistics`, and to text
tune, compare   other questions, asked in the same way      picture  how figures are drawn
"""
