"""A run: the loop, what it stores and tells, how it goes on after an interruption, and how it ends."""
