"""Contract of `packed_linear`: y = x @ W^T (+ b) on a GPU, W as a `PackedMatrix` holds it.

x: [rows, in] bfloat16, float16 or float32 (the *activation type*); y: [rows, out], overwritten; sums are
float32. W is one of
- dense, in the activation type;
- int8 or int4 codes, groups of 32, 64 or 128 columns sharing scale and zero point: the value is
  scale * (code - zero), rounded once to the activation type. The difference is exact, so where scales are
  numbers of that type, this is the checkpoint's own grid to half a unit in the last place;
- int8 codes times x from `group_quantize`: within 32 columns the product is an exact integer sum, and
  y = sum over groups of w_scale * (x_scale * product - zero * x_sum), in order.

**Batch-invariant**: an element of y depends on its row of x and its row of W alone, bit for bit. K is cut
into `splits` pieces by the shape of W alone; each is summed from front to back in steps of `block_k`, and the
pieces are added in order. Whether one program sums all pieces or each has its own is of no matter. Tiles of
few and of many rows multiply with the same matrix instruction: W is the left operand, of one size.

Worked number: K = 4096, block_k 64, 2 splits: 32 products in order, 32 others in order, then their two sums.

Source: He et al. 2025, "Defeating Nondeterminism in LLM Inference"; Frantar et al. 2024, "MARLIN", section
3.4 for codes made floats by their bits; Lin et al. 2023, "AWQ", for groups with zero points.
"""

INT4_CENTRE = 8
"""Zero point of symmetric 4-bit codes."""
GROUPS = (32, 64, 128)
"""Columns that may share a scale."""
