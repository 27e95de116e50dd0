"""Products on GPUs: exchanges and transports of rows in device memory."""
