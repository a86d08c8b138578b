"""Randomness as a pure function of (seed, choice, position): the same draw on every worker and device.

Philox4x32-10: key = the seed's low and high word; counter = (position low, position high, choice, 0).
The uniform number is made of the first two output words: ((w0 << 21) | (w1 >> 11)) / 2^53.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3.
"""

_MASK = 0xFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return four 32-bit words for a 128-bit counter and a 64-bit key, both as 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = _MULTIPLIER_0 * c0
        p1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """Return the draw of one output position, in [0, 1) with 53 bits."""
    words = philox4x32(
        (position & _MASK, (position >> 32) & _MASK, choice & _MASK, 0), (seed & _MASK, (seed >> 32) & _MASK)
    )
    return float((words[0] << 21) | (words[1] >> 11)) * 2.0**-53
