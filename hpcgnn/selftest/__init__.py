"""Test an installation on the machine where it will run: ``hpcgnn selftest``."""
