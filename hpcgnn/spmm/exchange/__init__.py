"""Ghost exchanges, which move rows and sums between the ranks of a product."""
