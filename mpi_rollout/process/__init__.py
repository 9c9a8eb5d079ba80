"""One process: its start, its host, what it prints, which signals it heeds, its end, and user code that it loads."""
