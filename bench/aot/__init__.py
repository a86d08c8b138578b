"""Compiles every registered Triton kernel for every chip, without one, and keeps what each needs of it.

`python -m bench.aot` compares with the committed tables, `--write` replaces them. See `worker.kernels.aot`.
"""
