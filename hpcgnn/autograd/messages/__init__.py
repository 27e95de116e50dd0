"""Messages of networks on edges: chains of maps in fused passes, reductions, their gradients."""
