"""Contract of `group_quantize`: rows of floats as int8 codes, 32 columns sharing a scale.

x: [rows, width] in the type of activations; width is a multiple of `GROUP`. codes: [rows, width] int8;
scales, sums: [rows, width / GROUP] float32; all three are overwritten.

scale = max|x| / 127 over the group, code = x * (127 / max|x|) rounded to nearest, ties to even; sum is
scale * (sum of the group's codes), what a product needs where weights have zero points. A group without
anything above `LEAST` is zeros with scale 0. One that holds NaN or infinity has scale NaN and zeros for
codes: integers cannot say it, and the row must fail, alone. A group's bits depend on its own values alone.

The kernels that end in a quantisation (`rms_norm`, `act_mul`) round their result to the type of activations
first: fusing changes no bit.

Worked number: values up to 2.54 -> scale 0.02, and 1.0 becomes code 50.
"""

GROUP = 32
"""Columns that share a scale."""
LEAST = 1e-35
"""127 divided by less than this would not be finite."""
