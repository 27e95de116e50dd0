"""Predict what a run would need: rows, memory and seconds, by exchange and schedule.

One process reads the pattern of the whole graph and counts what every rank would send and receive,
exactly as training counts it. Then it rehearses the rank with the most non-zeros and the one with
the most rows: their shares of the graph with the real model, products and optimiser, but with
messages replaced by zeros of the same size. So memory and the seconds of computing are measured,
rows and bytes are counted, and only the seconds of messages are computed, from a bandwidth and a
latency.
"""
