"""Torch functions over distributed operators; torch starts at this layer."""

from hpcgnn.autograd.aggregate import aggregate
from hpcgnn.autograd.dropout import DropoutKey, dropout

__all__ = ["DropoutKey", "aggregate", "dropout"]
