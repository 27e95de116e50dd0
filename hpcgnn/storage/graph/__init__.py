"""The graph store: its schema, reader, writer and checks."""
