"""Training on stores of many graphs, each of which is predicted as a whole."""
