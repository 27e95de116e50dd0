"""The run directory: checkpoints, resume, saved models, summary, and what the user is told."""
