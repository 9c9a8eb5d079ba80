"""Which ranks and which mode suit an env on this machine: measured, not guessed.

candidates  ways to run it, and which of them cannot win, by the model
trials      what the jobs of each gave
runner      measures the env, the exchange and the candidates
report      a table, the command to use, and why
"""
