"""Edge classification and regression: labels or numbers of the graph's edges."""
