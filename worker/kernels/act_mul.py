"""Contract of `act_mul`: y = f(gate) * up, where x holds gate and up side by side; f is silu or gelu (tanh).

x: [rows, 2 * width]; y: [rows, width], overwritten. float32 on a CPU; on a GPU bfloat16 or float16 as well,
computed in float32 and rounded once. An element's bits depend on its own inputs alone, not on its index.

Fused with `group_quantize`, y goes through it and only codes, scales and sums are written.

Source: Shazeer 2020, "GLU Variants Improve Transformer"; Hendrycks and Gimpel 2016, "Gaussian Error Linear
Units", section 2 for the approximation.
"""

import math

GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
"""gelu(x) = x / 2 * (1 + tanh(GELU_SCALE * (x + GELU_CUBIC * x^3)))."""
