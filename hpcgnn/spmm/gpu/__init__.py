"""Products on GPUs: kernels on the device, and transports of its rows."""
