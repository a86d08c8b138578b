"""The small files of a Hugging Face folder: config, tokeniser, template, ends of sequence.

Knows their names and keys. From a folder they are copied; from a GGUF file they are made of its metadata.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from services.artifacts.artifact import ArtifactKind, ModelArtifact
from services.artifacts.model_folder import read_json
from worker.models.registry import BuiltModel

_COPIED = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"),
)
_CLASSES = {
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "mistral": ("mistral", "MistralForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}
"""Family -> model_type of its text model and the class that transformers loads."""


def source_config(artifact: ModelArtifact, model: BuiltModel) -> dict[str, Any]:
    """Return config.json of the model as it was: a text model's, whatever it came wrapped in."""
    model_type, architecture = _CLASSES[model.family]
    if artifact.kind is ArtifactKind.FOLDER:
        config = read_json(artifact.path / "config.json", required=True)
        config = config.get("text_config", config) | {"model_type": model_type}
        return {key: value for key, value in config.items() if key != "quantization_config"}
    config = {**artifact.config, "model_type": model_type, "architectures": [architecture]}
    if model.family == "gemma3":
        config["layer_types"] = [
            "sliding_attention" if layer.window else "full_attention" for layer in model.config.layers
        ]
    tokenizer = artifact.tokenizer
    return {**config, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id, "dtype": "bfloat16"}


def copy_small_files(artifact: ModelArtifact, folder: Path) -> None:
    """Bring tokeniser, template and generation defaults into `folder`."""
    if artifact.kind is ArtifactKind.FOLDER:
        for name in _COPIED:
            if (artifact.path / name).is_file():
                shutil.copyfile(artifact.path / name, folder / name)
        return
    tokenizer = artifact.tokenizer
    special = {
        f"{role}_token": tokenizer.token_text(token_id)
        for role, token_id in (("bos", tokenizer.bos_id), ("eos", tokenizer.eos_id))
        if token_id is not None
    }
    (folder / "tokenizer.json").write_text(_with_bos(artifact), encoding="utf-8")
    _write(
        folder / "tokenizer_config.json",
        {**special, "add_bos_token": tokenizer.add_bos, "tokenizer_class": "PreTrainedTokenizerFast"},
    )
    eos_ids = sorted(artifact.eos_ids)
    _write(folder / "generation_config.json", {"eos_token_id": eos_ids, **artifact.generation_defaults})
    if artifact.chat_template is not None:
        (folder / "chat_template.jinja").write_text(artifact.chat_template, encoding="utf-8")


def _with_bos(artifact: ModelArtifact) -> str:
    """Return tokenizer.json; other readers find in it, and only in it, that a text begins with BOS."""
    ours = artifact.tokenizer
    tokenizer = Tokenizer.from_str(ours.to_json())
    if ours.add_bos and ours.bos_id is not None:
        bos = ours.token_text(ours.bos_id)
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, ours.bos_id)]
        )
    text: str = tokenizer.to_str()
    return text


def _write(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
