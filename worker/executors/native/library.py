"""The native library as Python sees it: `abi.h`, struct by struct and function by function.

Knows the interface alone. Foreign calls release the GIL, so a step leaves the rest of the process running.
"""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from pathlib import Path
from typing import Any

from services.domain.kv_layout import KvFormat
from worker.plan.op import OpKind


class WeightKind(IntEnum):
    """How a weight is stored once packed."""

    F32 = 0
    BF16 = 1
    F16 = 2
    U4 = 3
    U8 = 4


class Compute(IntEnum):
    """What activations become before a product with a quantised weight."""

    F32 = 0
    INT8 = 1


KV_FORMATS = (KvFormat.F32, KvFormat.BF16, KvFormat.INT8)
"""QuireKvFormat, in its order."""

OP_KINDS = {
    kind: number
    for number, kind in enumerate(
        (
            OpKind.EMBED,
            OpKind.RMS_NORM,
            OpKind.LINEAR,
            OpKind.QK_NORM,
            OpKind.ROPE_STORE,
            OpKind.PAGED_ATTENTION,
            OpKind.ACT_MUL,
            OpKind.ADD,
            OpKind.SCALE,
            OpKind.SOFT_CAP,
            OpKind.GATHER_ROWS,
            OpKind.LOGITS,
        )
    )
}
"""QuireOpKind. A kind that is not here cannot be computed natively."""


class Slot(Structure):
    _fields_ = [("is_output_rows", c_int32), ("width", c_int32)]


class Op(Structure):
    _fields_ = [
        ("kind", c_int32),
        ("inputs", c_int32 * 2),
        ("output", c_int32),
        ("first_weight", c_int32),
        ("num_weights", c_int32),
        ("has_biases", c_int32),
        ("layer", c_int32),
        ("rope_table", c_int32),
        ("window", c_int32),
        ("activation", c_int32),
        ("eps", c_float),
        ("scale", c_float),
        ("soft_cap", c_float),
    ]


class Weight(Structure):
    _fields_ = [
        ("kind", c_int32),
        ("rows", c_int32),
        ("cols", c_int32),
        ("group", c_int32),
        ("data", c_void_p),
    ]


class Model(Structure):
    _fields_ = [
        ("ops", POINTER(Op)),
        ("slots", POINTER(Slot)),
        ("weights", POINTER(Weight)),
        ("rope_tables", POINTER(c_void_p)),
        ("num_ops", c_int32),
        ("num_slots", c_int32),
        ("num_weights", c_int32),
        ("num_rope_tables", c_int32),
        ("output", c_int32),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("max_positions", c_int32),
        ("page_size", c_int32),
        ("kv_format", c_int32),
        ("compute", c_int32),
    ]


class Batch(Structure):
    _fields_ = [
        ("num_tokens", c_int32),
        ("num_sequences", c_int32),
        ("num_outputs", c_int32),
        ("table_width", c_int32),
        ("num_feeds", c_int32),
        ("ids", c_void_p),
        ("positions", c_void_p),
        ("query_start", c_void_p),
        ("context_len", c_void_p),
        ("page_table", c_void_p),
        ("out_rows", c_void_p),
        ("feeds", c_void_p),
    ]


class SampleRow(Structure):
    _fields_ = [
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition_penalty", c_double),
        ("presence_penalty", c_double),
        ("frequency_penalty", c_double),
        ("seed", c_uint64),
        ("position", c_int64),
        ("choice", c_int32),
        ("top_k", c_int32),
        ("num_logprobs", c_int32),
        ("num_prompt", c_int32),
        ("num_output", c_int32),
        ("num_bias", c_int32),
        ("num_forbidden", c_int32),
        ("prompt_ids", c_void_p),
        ("output_ids", c_void_p),
        ("bias_ids", c_void_p),
        ("biases", c_void_p),
        ("forbidden_ids", c_void_p),
    ]


STRUCTS = (Slot, Op, Weight, Model, Batch, SampleRow)
"""In the order of `quire_sizeof`."""

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "last_error": (c_char_p, []),
    "sizeof": (c_int64, [c_int32]),
    "instruction_set": (c_char_p, []),
    "kernel_name": (c_char_p, [c_int32, c_int32]),
    "packed_bytes": (c_int64, [c_int32] * 4),
    "used_bytes": (c_int64, [c_int32] * 4 + [c_void_p]),
    "pack_codes": (c_int32, [c_int32] * 4 + [c_void_p] * 4),
    "pack_floats": (c_int32, [c_int32] * 3 + [c_void_p] * 2),
    "create": (c_void_p, [POINTER(Model), c_int32]),
    "destroy": (None, [c_void_p]),
    "set_arena": (c_int32, [c_void_p, c_int32, c_void_p, c_int64]),
    "allocate": (c_int32, [c_void_p, c_int64]),
    "page_bytes": (c_int64, [c_void_p]),
    "begin_step": (c_int64, [c_void_p, POINTER(Batch), c_void_p]),
    "begin_sample": (
        c_int64,
        [c_void_p, c_void_p, c_int32, c_int32, POINTER(SampleRow), c_void_p, c_int32, *[c_void_p] * 5],
    ),
    "wait": (c_int32, [c_void_p, c_int64]),
    "read_slot": (c_int32, [c_void_p, c_int32, c_void_p]),
}
"""Name without `quire_`, result and arguments."""


class NativeError(Exception):
    """A native call failed; the message is the library's."""


class Library:
    """A loaded library. Functions that can fail raise `NativeError`."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, f"quire_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        sizes = [self.call("sizeof", number) for number in range(len(STRUCTS))]
        assert sizes == [ctypes.sizeof(struct) for struct in STRUCTS], "library.py and abi.h differ"

    def call(self, name: str, *arguments: Any) -> Any:
        """Call `quire_<name>`; what it returns."""
        return self._functions[name](*arguments)

    def check(self, name: str, *arguments: Any) -> None:
        """Call a function that returns 0 unless it fails.

        Raises:
            NativeError: It failed.
        """
        if self._functions[name](*arguments):
            raise NativeError(self.last_error())

    def begin(self, name: str, *arguments: Any) -> int:
        """Call a function that begins work; the work's number.

        Raises:
            NativeError: It has not begun.
        """
        number: int = self._functions[name](*arguments)
        if number < 0:
            raise NativeError(self.last_error())
        return number

    def last_error(self) -> str:
        """Return what the last failure on this thread said."""
        return self._text("last_error")

    def kernel_name(self, kind: WeightKind, compute: Compute) -> str:
        """Name the code that multiplies with weights of that kind."""
        return self._text("kernel_name", kind, compute)

    def _text(self, name: str, *arguments: int) -> str:
        text: bytes = self.call(name, *arguments)
        return text.decode()
