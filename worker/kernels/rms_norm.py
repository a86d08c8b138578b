"""Contract of `rms_norm`: y = x / sqrt(mean(x^2) + eps) * w, row by row.

x: [..., width] float32; w: [width]; y: like x, overwritten, not x itself. Each row is summed in one order.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
"""
