"""Kernels are interpreted here: no test of this folder needs a GPU.

Triton reads the variable when a kernel is defined, so it is set before the first one is imported.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"
