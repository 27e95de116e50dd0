"""The interface of sources, which make training steps, and the source of the whole graph."""
