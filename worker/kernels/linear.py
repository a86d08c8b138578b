"""Contract of `linear`: y = x @ W^T (+ b).

x: [rows, in] float32; W: [out, in] float32; b: [out]; y: [rows, out], overwritten.

A row of y depends on its own row of x alone, bit for bit: whatever the other rows hold, however many there
are and at which index it stands. Kernels of matrix libraries do not promise that (a row at the edge of a
matrix may be summed in another order), so rows go through tiles of a few fixed sizes, and a size is used only
if it was proven on this machine, with these matrices, to give the bits that the largest size gives.

Source: He et al. 2025, "Defeating Nondeterminism in LLM Inference", on batch invariance.
"""

from collections.abc import Sequence


def split_rows(num_rows: int, tiles: Sequence[int]) -> list[int]:
    """Return the tiles that cover `num_rows`: largest ones, then the smallest that holds the rest.

    Their sum is the padded number of rows. Worked number: 70 rows, tiles (1, 4, 16, 64) -> [64, 16].

    Args:
        num_rows: Rows to cover.
        tiles: Proven sizes, ascending.
    """
    largest = tiles[-1]
    cover = [largest] * (num_rows // largest)
    rest = num_rows % largest
    if rest:
        cover.append(next(size for size in tiles if size >= rest))
    return cover
