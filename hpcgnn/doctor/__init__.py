"""What of this machine would make a run fail or crawl, and what to do; ``hpcgnn doctor``."""
