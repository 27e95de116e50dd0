"""Reproductions of five papers: each script rebuilds figures and tables of one, scaled down.

``python -m benchmarks.papers.NAME --docs benchmarks/results`` writes the sections of papers.md
there and their figures; ``--quick`` uses small sizes and writes nothing. The scripts may import
the whole package and the benchmarks, and are not installed.
"""
