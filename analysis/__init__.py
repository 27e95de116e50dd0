"""Read-only scripts over run directories: each prints a table and writes one figure.

``python -m analysis.epoch_breakdown RUN`` shows where the time of an epoch goes,
``python -m analysis.comm_matrix RUN`` who sends how much to whom, and
``python -m analysis.learning_curves RUN [RUN...]`` loss and accuracy. A run directory may have been
copied from another machine. `analysis.load` is the only module that knows the file formats.
"""
