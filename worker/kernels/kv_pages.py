"""Contract of KV memory in pages, as the GPU's kernels read and write it.

pages: [num_pages, page_bytes] uint8. A page holds [num_layers, 2 (keys, values), kv_heads, page_size,
head_dim] numbers in float32, bfloat16, float16 or int8, row-major, and behind them, where they are int8, one
float32 scale for each row of head_dim numbers, in the order of the rows: a number is code * scale.

A row of int8 is rounded so: scale = max |x| / 127, code = x / scale to the nearest, ties to even. Codes are
in [-127, 127]. A row without anything above `LEAST` is zeros with scale 0. One that holds NaN or infinity has
scale NaN and zeros for codes: integers cannot say it, and whoever looks at that token must fail.

This is order `rows` of the KV layout that planner and transfer use; kernels get its sizes as numbers.
"""

CODE_MAX = 127
"""Largest absolute code of int8."""
LEAST = 1e-35
"""A row below has no scale that is a normal number."""
