"""The five papers again: a script each rebuilds its figures and tables, sizes scaled down.

``python -m benchmarks.papers.NAME --docs benchmarks/results`` writes the sections of papers.md
there and their figures; ``--quick`` makes everything small and writes nothing. The scripts stand
above the whole package and beside the benchmarks, and are not installed.
"""
