"""hpcgnn: graph neural networks on graphs too large for one machine, trained with MPI.

The folders follow the flow of data: ``convert`` and ``gallery`` write a store, ``partition``
permutes it, and ``train`` reads block rows of it (``storage``, ``comm``, ``sparse``), multiplies
them with dense activations (``spmm``, ``kernels``), differentiates the products (``autograd``), and
trains the models of ``nn``. Importing this package does no work.
"""

__version__ = "0.1.0"
