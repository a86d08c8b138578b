"""`python -m bench.tune`: measure tiles on this chip and write the tables beside the kernels.

Run on the machine with the GPU, for minutes per format and shape; then run `python -m bench.aot --write` for
what changed, `tests/unit/kernels/test_linear_instructions.py`, and commit tables and results together.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton

from bench.gpu.context import BenchContext
from bench.gpu.results import now
from bench.gpu.sizes import TABLE
from bench.gpu.timing import EventTimer
from bench.tune import tables
from bench.tune.measuring import AttentionMeasure, LinearMeasure
from bench.tune.tuner import tune_attention, tune_linear
from worker.kernels import linear_tuning, paged_attention_tuning
from worker.kernels.dtypes_triton import chip_of

_KINDS = "bf16,w4a16-g128,w8a16-g128,w8a8-g128"
_SHAPES = "6144x4096,4096x4096,28672x4096,4096x14336"
"""Products of an 8B Llama 3: qkv, o, gate and up, down."""
_KEYS = "d128-float,d128-int8"


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.tune", description=__doc__)
    parser.add_argument("--kinds", default=_KINDS, help=f"formats of products, or nothing [{_KINDS}]")
    parser.add_argument("--shapes", default=_SHAPES, help=f"OUTxIN of weights [{_SHAPES}]")
    parser.add_argument("--attention", default=_KEYS, help=f"shapes of attention, or nothing [{_KEYS}]")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing is measured and no table changes", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    chip = chip_of(device)
    label = f"{torch.cuda.get_device_name()}, triton {triton.__version__}, {now():%Y-%m-%d}"
    context = BenchContext(
        device=device,
        timer=EventTimer(repeats=5, target_s=0.005),
        sizes=TABLE,
        generator=torch.Generator(device).manual_seed(0),
    )
    linear_table = tune_linear(
        json.loads(linear_tuning.TABLE.read_text()),
        chip,
        label,
        kinds=_words(arguments.kinds),
        shapes=[_shape(word) for word in _words(arguments.shapes)],
        measure=lambda kind, shape: _parts(LinearMeasure(context, chip, kind, shape)),
        say=_say,
    )
    _write(linear_tuning.TABLE, tables.linear_text(linear_table))
    attention_table = tune_attention(
        json.loads(paged_attention_tuning.TABLE.read_text()),
        chip,
        label,
        keys=_words(arguments.attention),
        measure=lambda kernel, key: _parts(AttentionMeasure(context, chip, kernel, key)),
        say=_say,
    )
    _write(paged_attention_tuning.TABLE, tables.attention_text(attention_table))
    return 0


def _parts(measure: Any) -> tuple[Any, Any]:
    return measure.seconds, measure.is_allowed


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    print(f"{path} written", flush=True)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _shape(word: str) -> tuple[int, int]:
    out_features, _, in_features = word.partition("x")
    return int(out_features), int(in_features)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
