"""Read-only scripts over run directories: each prints a table and writes one figure.

``python -m analysis.epoch_breakdown RUN`` shows where the time of an epoch goes,
``python -m analysis.comm_matrix RUN`` who sends how much to whom,
``python -m analysis.learning_curves RUN [RUN...]`` loss and accuracy, and
``python -m analysis.search RUN [RUN...]`` which settings of a search are best. A run directory may
have been copied from another machine. `analysis.load` is the only module that knows the formats.
"""
