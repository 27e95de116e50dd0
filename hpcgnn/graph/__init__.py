"""The graph of a rank: rows, operators, node data, device."""
