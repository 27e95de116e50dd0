"""Linear maps of rows beside an aggregation: of all nodes, by relation, by node type."""
