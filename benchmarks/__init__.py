"""Benchmarks against peers; each module is a command with ``--json``. See README.md."""
