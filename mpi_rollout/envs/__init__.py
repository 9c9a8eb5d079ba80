"""One rank's envs: making them, stepping them one after the other, and what is done when they fail."""
