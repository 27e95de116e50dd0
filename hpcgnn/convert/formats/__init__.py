"""Readers of input formats, one module each; `registry` lists them."""
