"""Configurations that launches of published models choose were compiled ahead of time.

What the launch code gives a kernel is compared with what its module compiles for the chip. Some fields have
to be in one compiled kernel together: the tile and what its loop holds in registers. Others, which add little
to a loop, have to meet two by two, the chip being one of them. Numbers that only addresses are made of are
left out. That the tables have all of what modules compile is in `test_aot_tables.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations, product

import pytest

from bench.aot import tables
from tests.fakes.launched_forms import FORMATS, QUANTISED, Launch, LaunchedForms
from tests.fakes.real_shapes import REAL_SHAPES
from worker.kernels.aot import CHIPS
from worker.models.registry import build_model

Items = frozenset[tuple[str, object]]
Forms = frozenset[tuple[str, Items]]
"""Kernels with some of their fields."""

_OPTIONS = ("num_warps", "num_stages", "matrix_instr_nonkdim", "maxnreg")
_CUT = ("M", "BLOCK_N", "BLOCK_M", "BLOCK_K", "USES_PTX", *_OPTIONS)
"""What follows from the other fields: it is in no pair."""
_FIELDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ragged_kernel": (
        ("HEAD_DIM", "keys", "HAS_WINDOW", "HAS_CAP", *_CUT),
        ("dtype", "PAGE_SIZE", "GROUP"),
    ),
    # Heads of 256, which come near to all registers, are compiled with every mask.
    "decode_kernel": (("HEAD_DIM", "keys", *_CUT), ("dtype", "HAS_WINDOW", "HAS_CAP", "PAGE_SIZE", "GROUP")),
    "merge_kernel": (("HEAD_DIM", *_CUT), ("dtype", "HAS_WINDOW")),
    # Of a group or a row one number more or less; and a type whose instructions are the other's, one for one.
    "linear_kernel": (
        ("BITS", "IS_INT8", "GROUP", "SPLITS", "IS_PARALLEL", *_CUT),
        ("dtype", "y", "HAS_ZEROS", "HAS_BIAS"),
    ),
    "add_pieces_kernel": (("y", "HAS_BIAS", *_CUT), ()),
    "rope_store_kernel": (("HEAD_DIM", *_CUT), ("dtype", "keys", "PAGE_SIZE", "q_weight")),
}
"""By kernel: what has to be together, and what two by two. Of any other kernel all but dtype is together."""


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> LaunchedForms:
    return LaunchedForms(monkeypatch)


def test_what_published_models_launch_is_compiled_for_every_chip(forms: LaunchedForms) -> None:
    launches = forms.of_sampling(128_256)
    for config in REAL_SHAPES.values():
        model = build_model(config)
        for kept in FORMATS:
            launches += forms.of_model(model, kept)
    kernels = {launch.kernel for launch in launches}
    assert kernels >= {*_FIELDS, "rms_norm_kernel", "act_mul_kernel", "draw_row_kernel"}
    assert_compiled(launches)


def test_what_quantised_models_launch_is_compiled_for_every_chip(forms: LaunchedForms) -> None:
    """A small model, a large one and one with biases: K whole and in pieces."""
    models = [build_model(REAL_SHAPES[name]) for name in ("SmolLM2 135M", "Llama 3 70B", "Qwen 2.5 7B")]
    assert_compiled(each for model in models for kept in QUANTISED for each in forms.of_model(model, kept))


def assert_compiled(launches: Iterable[Launch]) -> None:
    """Name launches that have no compiled kernel, and two of their values that have none together."""
    whole, pairs, aligned = _compiled()
    missing: set[str] = set()
    for launch in launches:
        kernel, fields = launch.kernel, _normal(launch.kernel, {**launch.fields, "chip": launch.chip})
        if (kernel, _together(kernel, fields)) not in whole:
            missing.add(f"{kernel}: {sorted(_together(kernel, fields), key=str)}")
        missing |= {f"{kernel}: {sorted(two)}" for two in _pairs(fields) if (kernel, two) not in pairs}
        odd = [name for name, value in launch.integers.items() if (kernel, name) in aligned and value % 16]
        assert not odd, f"{kernel} was compiled for multiples of 16, not for {launch.integers}"
    assert not missing, "\n".join(sorted(missing))


@cache
def _compiled() -> tuple[Forms, Forms, frozenset[tuple[str, str]]]:
    """Return of all that modules compile what is together, every two values that are, and aligned numbers."""
    whole, pairs, aligned = set(), set(), set()
    for chip, module in product(CHIPS, tables.modules()):
        for each in tables.kernels(module, chip):
            kernel, cut = (
                each.function.fn.__name__,
                {"num_warps": each.num_warps, "num_stages": each.num_stages},
            )
            given = {**each.signature, **each.constexprs, **each.options, **cut, "chip": chip}
            fields = _normal(kernel, given)
            whole.add((kernel, _together(kernel, fields)))
            pairs |= {(kernel, two) for two in _pairs(fields)}
            aligned |= {(kernel, name) for name in each.aligned}
    return frozenset(whole), frozenset(pairs), frozenset(aligned)


def _together(kernel: str, fields: Mapping[str, object]) -> Items:
    apart = _FIELDS[kernel][1] if kernel in _FIELDS else ("dtype",)
    return frozenset(item for item in fields.items() if item[0] not in apart)


def _pairs(fields: Mapping[str, object]) -> Iterator[Items]:
    for two in combinations((item for item in fields.items() if item[0] not in _CUT), 2):
        yield frozenset(two)


def _normal(kernel: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that count, the type of activations by itself, values that are as good as equal."""
    dtype = given.get("scales" if kernel == "linear_kernel" else "q" if "q" in given else "x")
    fields = {name: "dtype" if dtype and value == dtype else value for name, value in given.items()}
    fields["dtype"] = dtype
    fields.pop("COMPUTE", None)
    if kernel in ("ragged_kernel", "decode_kernel"):
        group = int(str(fields["GROUP"]))
        fields["GROUP"] = min(group, 2) if group & (group - 1) == 0 else "no power of two"
    if kernel == "linear_kernel":
        # Only the end of a loop; where pieces are apart, of an address, and they are float32.
        fields["SPLITS"] = min(int(str(fields["SPLITS"])), 2)
        fields["y"] = "float32" if fields["IS_PARALLEL"] else fields["y"]
    if kernel == "rope_store_kernel":
        fields["q_weight"] = fields["q_weight"] is not None
    if kernel in _FIELDS:
        kept = {"chip", *_FIELDS[kernel][0], *_FIELDS[kernel][1]}
        if kernel == "linear_kernel":
            kept.discard("M")  # the rows there
        fields = {name: value for name, value in fields.items() if name in kept}
    return fields
