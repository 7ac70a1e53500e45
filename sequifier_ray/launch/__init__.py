"""How worker processes start: Ray Train, torchrun, spawn, or this process. No training logic."""
