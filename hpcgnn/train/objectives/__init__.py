"""What is predicted: of nodes and whole graphs, of links, of programs."""
