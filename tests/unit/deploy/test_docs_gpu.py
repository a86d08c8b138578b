"""docs/gpu.md: its figures follow from the code, and its examples are as they say."""

import dataclasses
import json
import re
from pathlib import Path

from bench.aot import chips
from bench.aot.chips import BY_NAME
from services.cli import COMMANDS
from services.domain.kv_layout import KvFormat, KvLayout
from tests.unit.deploy.deployment import service
from worker.config import ExecutorKind, WorkerConfig
from worker.device_memory import DeviceUse, device_room
from worker.memory import MIB, PoolNeed, size_pool

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "gpu.md").read_text("utf-8")
FLAT = " ".join(TEXT.split())
KERNELS = ROOT / "worker" / "kernels"


def test_commands_flags_and_executors_are_ours() -> None:
    assert set(re.findall(r"^quire (\w+)", TEXT, re.MULTILINE)) <= set(COMMANDS)
    executors = re.findall(r"^\| `(\w+)` \| .* \| .* \| .* \| .* \|$", TEXT, re.MULTILINE)
    assert {"auto", *executors} == {kind.value for kind in ExecutorKind}
    flags = set(re.findall(r"`--([a-z-]+)", TEXT)) - {"to", "workers"}
    assert {flag.replace("-", "_") for flag in flags} <= set(WorkerConfig.__dataclass_fields__)
    assert service("worker-gpu-0")["profiles"] == ["gpu"]


def test_the_arithmetic_is_the_codes() -> None:
    page = {
        kv: KvLayout(format=kv, num_layers=32, num_kv_heads=8, head_dim=128, page_size=16).page_bytes
        for kv in (KvFormat.INT8, KvFormat.BF16)
    }
    hidden, ffn, vocab, layers = 4096, 14336, 128256, 32
    matrices = layers * hidden * (4096 + 2 * 1024 + 4096 + 3 * ffn)
    kept = 2 * 2 * vocab * hidden + 4 * (2 * layers + 1) * hidden
    floats, codes = 2 * matrices + kept, matrices // 2 + 2 * matrices // 128 + kept
    figures = (page[KvFormat.INT8], page[KvFormat.INT8] // 16, page[KvFormat.BF16] // 16, floats, codes)
    assert re.findall(r"\| ([\d,]+) \|$", TEXT, re.MULTILINE) == [f"{figure:,}" for figure in figures]
    use = DeviceUse(
        label="NVIDIA H200 (sm_90)",
        total_bytes=143_771 * MIB,
        free_bytes=143_000 * MIB,
        weight_bytes=floats,
        step_bytes=1000 * MIB,
        step_tokens=512,
    )
    need = PoolNeed(page_bytes=page[KvFormat.INT8], page_size=16, max_context_tokens=8192, max_sequences=32)
    pool = size_pool(need, kv_bytes=None, room=device_room(use, None))
    assert f'arithmetic="{pool.arithmetic}"' in FLAT


def test_the_table_shown_is_the_committed_one() -> None:
    table = json.loads((KERNELS / "paged_attention_triton.json").read_text())["kernels"]
    row = json.dumps(table["decode-d128-bf16-i8"]["sm_90"])
    assert f'"sm_90": {row},' in TEXT
    fields = re.findall(r"^\| `(\w+)` \| .* \| .* \|$", TEXT.partition("## Reading")[2], re.MULTILINE)
    assert fields == list(table["decode-d128-bf16-i8"]["sm_90"])


def test_the_worked_examples_name_what_is_there() -> None:
    named = re.findall(r"`((?:bench|tests|worker)/[\w./]+\.\w+)`", TEXT)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).is_file()] == []
    (chip,) = re.findall(r"`(replace\(_cuda\(89.*?\))`", FLAT)
    made = eval(chip, {**vars(chips), "replace": dataclasses.replace})  # what somebody would paste
    assert (made.arch, made.unit_warps, made.unit_blocks) == (89, 48, 24)
    assert made.block_shared_bytes == 99 << 10


def test_the_example_of_a_kernel_names_every_file_that_knows_it() -> None:
    """Whoever adds one by it has forgotten none, nor learns of a list from CI."""
    chapter = TEXT.partition("## Adding a kernel")[2]
    known = re.compile(r"soft_cap_triton|\b(?:OpKind\.|QUIRE_)SOFT_CAP\b")
    sources = [*ROOT.glob("bench/**/*.py"), *ROOT.glob("worker/**/*.*"), ROOT / "pyproject.toml"]
    knowing = {
        str(path.relative_to(ROOT))
        for path in sources
        if path.suffix in (".py", ".cc", ".h", ".toml") and known.search(path.read_text("utf-8"))
    }
    assert len(knowing) > 8
    assert sorted(name for name in knowing if f"`{name}`" not in chapter) == []


def test_chips_that_are_called_untuned_are() -> None:
    for name in ("linear", "paged_attention"):
        table = json.loads((KERNELS / f"{name}_tuning.json").read_text())
        measured = [chip for chip, entry in table.items() if entry["measured"] is not None]
        assert measured == [], "docs/gpu.md says that no chip was tuned: tell what was"
    assert "sm_89" not in BY_NAME, "docs/gpu.md adds it as an example: take another"
