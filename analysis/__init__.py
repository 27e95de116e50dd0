"""Read-only scripts over run directories: each prints a table and writes one figure.

``hpcgnn analyse epoch_breakdown RUN`` shows where the time of an epoch goes,
``hpcgnn analyse comm_matrix RUN`` the traffic between pairs of ranks,
``hpcgnn analyse learning_curves RUN [RUN...]`` loss and accuracy, and
``hpcgnn analyse search RUN [RUN...]`` the best settings of a search. A run directory may have been
copied from another machine. `load` is the only module that knows the formats.

A link makes the folder `hpcgnn.analysis` as well, so it is installed with the package; in a
checkout ``python -m analysis.epoch_breakdown RUN`` does the same.
"""
