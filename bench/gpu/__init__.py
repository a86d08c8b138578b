"""Measures the GPU's kernels, a decode step and a worker on one machine: `bench/gpu.sh`, see `__main__`."""
