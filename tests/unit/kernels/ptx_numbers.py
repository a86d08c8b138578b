"""Runs the few PTX instructions that turn bytes of codes into floats, in NumPy: what no machine here can run.

Knows `mov`, `and`, `shr`, `prmt` (default mode) and `fma.rn` of packed pairs, on one lane of 32 bits.
"""

import re
from collections.abc import Sequence

import numpy as np


def to_float(word: int, kind: str) -> float:
    """Return 16 bits as the number that they are."""
    if kind == "bf16":
        return float(np.array([word << 16], np.uint32).view(np.float32)[0])
    return float(np.array([word], np.uint16).view(np.float16)[0])


def to_bits(value: float, kind: str) -> int:
    """Round to the nearest 16-bit number, ties to even. Products here are exact in float64 before."""
    if kind == "f16":
        return int(np.array([value], np.float16).view(np.uint16)[0])
    bits = int(np.array([value], np.float32).view(np.uint32)[0])
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def run(asm: str, num_outputs: int, inputs: Sequence[int]) -> list[int]:
    """Run a block; `$0` .. are its outputs, then come the inputs."""
    registers = {f"${num_outputs + i}": word for i, word in enumerate(inputs)}

    def value(name: str) -> int:
        return int(name, 16) if name.startswith("0x") else int(name) if name.isdigit() else registers[name]

    for line in asm.replace("{", "").replace("}", "").split(";"):
        words = re.split(r"[\s,]+", line.strip())
        if words[0] in ("", ".reg"):
            continue
        target, arguments = words[1], [value(name) for name in words[2:]]
        registers[target] = _apply(words[0], arguments)
    return [registers[f"${i}"] for i in range(num_outputs)]


def _apply(name: str, arguments: list[int]) -> int:
    operation, _, kind = name.partition(".")
    if operation == "mov":
        return arguments[0]
    if operation == "and":
        return arguments[0] & arguments[1]
    if operation == "shr":
        return arguments[0] >> arguments[1]
    if operation == "prmt":
        low, high, selector = arguments
        source = (low | high << 32).to_bytes(8, "little")
        return int.from_bytes(bytes(source[(selector >> 4 * i) & 7] for i in range(4)), "little")
    assert operation == "fma", name
    number = {"rn.bf16x2": "bf16", "rn.f16x2": "f16"}[kind]
    halves = []
    for shift in (0, 16):
        a, b, c = (to_float(word >> shift & 0xFFFF, number) for word in arguments)
        halves.append(to_bits(a * b + c, number))
    return halves[0] | halves[1] << 16
