"""Contract of `rms_norm`: y = x / sqrt(mean(x^2) + eps) * w, row by row.

x: [..., width]; w: [width]; y: like x, overwritten, not x itself. float32 on a CPU; on a GPU x and y may be
bfloat16 or float16 as well, computed in float32 and rounded once. Each row is summed in one order.

Fused forms, of 2-dimensional x, give the bits of their parts one after the other:
- with `residual` and `total`: total = residual + x, rounded to their type, is written, then normalised;
- with `quantised` (codes, scales, sums): y goes through `group_quantize` and only that is written.

`qk_norm` is the same over every q head (weight 0) and k head (weight 1) of a qkv row; v is copied.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
"""
