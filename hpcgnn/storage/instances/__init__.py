"""The store of program graphs: its schema, reader and writer."""
