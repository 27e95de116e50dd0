"""The run directory: checkpoints, resume, saved models, summary, and reports to the user."""
