"""One process: what it says, which signals it heeds, how it ends, and the user's code that it loads.

Imports nothing of the package but `errors`.
"""
