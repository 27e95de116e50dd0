"""The scales of a series, of what is trained on alone."""

import numpy as np

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.spmd import collective
from hpcgnn.train.fields.dynamics import Scales
from hpcgnn.train.fields.samples import Series
from hpcgnn.train.fields.scales import Moments


@collective
def measure(grid: ProcessGrid, series: Series, predict: str) -> Scales:
    """Return the scales of frames and of what a model gives, over ranks, nodes and training steps.

    Each step is read once. Frames are of all nodes, what is predicted is of those that count;
    edges count alike.

    Raises `CollectiveInputError` when a step does not read.
    """
    columns = series.columns
    widths = columns.width, columns.num_predicted, columns.edge_width
    frames, outputs, edges = map(Moments, widths)
    weights = series.weights.numpy()
    counted = weights * ~series.fixed.numpy()
    with agree(grid.world):
        for span in series.windows.spans["train"]:
            before = None
            for step in range(span.start, span.stop):
                frame = series.reader.read(step)
                frames.add(frame, weights)
                of_edges = series.reader.read_edges(step)
                edges.add(of_edges, np.ones(len(of_edges)))
                targets = frame[:, : columns.num_predicted].astype(np.float64)
                if predict != "difference":
                    outputs.add(targets, counted)
                elif before is not None:
                    outputs.add(targets - before, counted)
                before = targets
    return Scales(frames.over(grid), outputs.over(grid), edges.over(grid))
