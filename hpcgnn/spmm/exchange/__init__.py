"""The ghost exchanges: how rows and sums travel between the ranks of a product."""
