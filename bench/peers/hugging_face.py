"""Writes a GGUF file as the Hugging Face folder that a peer reads: the same numbers, as float32.

Knows tensor names and the folder's files; knows nothing of peers.
"""

import json
import shutil
from pathlib import Path

import numpy as np

from services.artifacts.artifact import open_artifact
from worker.executors.weights.loader import open_model
from worker.models.tensor_names import Transform, WeightFormat, file_name_of, transform_of
from worker.quantize.folder_files import copy_small_files, source_config
from worker.quantize.safetensors_writer import Entry, write_safetensors


def hugging_face_folder(gguf: Path, folder: Path) -> Path:
    """Return `folder` with the model in it, written there when it is not yet."""
    if folder.exists():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    artifact = open_artifact(gguf)
    model, weights = open_model(artifact)
    entries = {}
    for name in model.plan.parameters:
        values = weights.read(name)
        if transform_of(model.family, WeightFormat.HUGGING_FACE, name) is Transform.ADD_ONE:
            values -= np.float32(1)
        entries[file_name_of(name, WeightFormat.HUGGING_FACE)] = Entry.of("F32", values)
    write_safetensors(partial / "model.safetensors", entries)
    (partial / "config.json").write_text(json.dumps(source_config(artifact, model), indent=2) + "\n")
    copy_small_files(artifact, partial)
    partial.rename(folder)
    return folder
