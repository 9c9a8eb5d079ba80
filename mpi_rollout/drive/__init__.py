"""What the root does in a run and for a trainer alike: it sends actions to all ranks, and takes in what comes back."""
