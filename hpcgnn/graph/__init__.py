"""A rank's share of the graph: rows, operators, node data, device."""
