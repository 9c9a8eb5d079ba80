"""Which ranks and which mode suit an env on this machine: measured, not guessed.

candidates  ways to run it: which cannot win, by the model, and which to take, by their jobs
runner      measures the env, the exchange and the candidates
report      a table, the command to use, and why
"""
