"""Contract of `act_mul`: y = silu(gate) * up, where x holds gate and up side by side.

x: [rows, 2 * width] float32; y: [rows, width] float32, overwritten. An element's bits depend on its own
inputs alone, not on its index.

Source: Shazeer 2020, "GLU Variants Improve Transformer".
"""
