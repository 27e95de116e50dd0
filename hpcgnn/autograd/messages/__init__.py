"""Messages that networks compute for edges: fused perceptrons, reductions, and their gradients."""
