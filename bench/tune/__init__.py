"""Measures tiles on the chip at hand and writes the tables beside the kernels: `python -m bench.tune`.

Offline: workers read the committed tables and measure nothing.
"""
