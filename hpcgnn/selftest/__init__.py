"""Tests of an installation, as a site runs them: ``hpcgnn selftest``."""
