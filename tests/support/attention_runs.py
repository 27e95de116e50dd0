"""Attention layers of the oracle, run through the GPU's kernels."""

import numpy as np

from hpcgnn.kernels import cuda
from tests.support.attention_calls import DEVICE
from tests.support.attention_oracle import SLOPE, empty_state, transposed


def on_device(device, options):
    """Return keyword arguments with their arrays on the device."""

    def move(value):
        if isinstance(value, np.ndarray):
            return device.asarray(value)
        return tuple(move(each) for each in value) if isinstance(value, tuple) else value

    return {name: move(value) for name, value in options.items()}


def run_state(device, layer, size, state=None, **options):
    """Return the state after a forward pass, on the device; options hold host arrays."""
    state = tuple(device.asarray(array) for array in state or empty_state(layer))
    indptr = device.asarray(layer.graph.indptr)
    DEVICE.attention_forward(
        indptr,
        device.asarray(layer.graph.indices),
        *(device.asarray(array) for array in (layer.z, layer.source, layer.target)),
        *state,
        slope=SLOPE,
        groups=cuda.DeviceGroups.of(indptr, size),
        **on_device(device, options),
    )
    return state


def run_forward(device, layer, size=5, **options):
    state = run_state(device, layer, size, **options)
    DEVICE.attention_finish(*state)
    return state[0], state[2]


def run_backward(device, layer, lse, out, grads, size=5, **options):
    """Add gradients to `grads`, arrays on the device."""
    delta = device.empty(layer.target.shape, lse.dtype)
    DEVICE.attention_delta(device.asarray(layer.grad.astype(lse.dtype)), out, delta)
    indptr, indices = (device.asarray(array) for array in transposed(layer.graph))
    DEVICE.attention_backward(
        indptr,
        indices,
        *(device.asarray(array) for array in (layer.z, layer.source, layer.target)),
        lse,
        device.asarray(layer.grad),
        delta,
        *grads,
        slope=SLOPE,
        groups=cuda.DeviceGroups.of(indptr, size),
        **on_device(device, options),
    )
    return grads


def zero_grads(device, layer):
    dtype = layer.target.dtype
    shapes = layer.z.shape, layer.source.shape, layer.target.shape
    return tuple(device.zeros(shape, dtype) for shape in shapes)
