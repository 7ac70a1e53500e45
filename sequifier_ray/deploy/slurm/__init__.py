"""A training as a Slurm job: the batch script, what runs in its batch step, and what runs on every node."""
