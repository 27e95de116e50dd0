"""The objective interface, and the objectives of nodes, whole graphs and several tasks."""
