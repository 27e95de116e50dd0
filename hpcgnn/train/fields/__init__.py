"""Fields of nodes in time: samples, what is learned of them, and rollouts."""
