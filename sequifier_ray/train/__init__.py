"""Training: one update, the loop around it, strategies, checkpoints, figures. Knows no launcher."""
