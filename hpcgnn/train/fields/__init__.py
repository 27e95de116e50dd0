"""Fields over time on nodes and edges: samples, objective, rollouts and stepper."""
