"""One process: its start, what it prints, which signals it heeds, how it ends, and the user's code that it loads."""
