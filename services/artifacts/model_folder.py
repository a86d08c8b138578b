"""Reads the JSON files of a Hugging Face model folder and settles their spellings.

Knows file names and keys; knows nothing of which families can be run, nor how text is tokenised.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from services.artifacts.errors import ArtifactError


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file, empty when the file is absent and not required.

    Raises:
        ArtifactError: Missing though required, unreadable, or not a JSON object.
    """
    if not required and not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise ArtifactError(f"{path}: cannot be read ({exc}); fetch the model again") from exc
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}: is not a JSON object; fetch the model again")
    return value


def normalise_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's config with one spelling for what has had several.

    `text_config` is lifted to the top; `rope_parameters` (and `rope_scaling.type`) become `rope_theta` and
    `rope_scaling = {"rope_type": ..., ...}`, None for plain rotary embedding. Where they differ by kind of
    layer, these are full attention's and `rope_local_base_freq` and `rope_local_scaling` sliding attention's.
    Everything else is untouched.
    """
    config = {**raw, **raw.get("text_config", {})}
    config.pop("text_config", None)
    rope = config.pop("rope_parameters", None) or config.get("rope_scaling") or {}
    if "full_attention" in rope or "sliding_attention" in rope:
        local_theta, config["rope_local_scaling"] = _theta_and_scaling(rope.get("sliding_attention") or {})
        config.setdefault("rope_local_base_freq", local_theta)
        rope = rope.get("full_attention") or {}
    theta, config["rope_scaling"] = _theta_and_scaling(rope)
    if theta is not None:
        config["rope_theta"] = theta
    return config


def _theta_and_scaling(rope: Mapping[str, Any]) -> tuple[Any, dict[str, Any] | None]:
    """Return the base, None where it is not said, and the scaling, None for plain rotary embedding."""
    scaling = dict(rope)
    theta = scaling.pop("rope_theta", None)
    if "type" in scaling:
        scaling.setdefault("rope_type", scaling.pop("type"))
    return theta, None if scaling.get("rope_type", "default") == "default" else scaling


def token_text(value: Any) -> str | None:
    """Return the text of a special token as tokenizer_config.json spells it (a string or an object)."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def ids_of(value: Any) -> Iterable[int]:
    """Return the token ids of a field that holds one, a list of them, or null."""
    if isinstance(value, bool) or value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    return tuple(int(item) for item in value)


def chat_template_of(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Return the folder's chat template: chat_template.jinja, else tokenizer_config.json's default one."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None
