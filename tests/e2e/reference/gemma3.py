"""How transformers goes on from some prompts with the real Gemma 3, greedily, pinned in gemma3_ids.json.

The model is transformers' Gemma 3 in float32 with the weights that `services.artifacts` dequantises. When the
file is written (`python -m tests.e2e.reference.gemma3`), our tokenizer must give the ids of transformers' own
reader of GGUF; that one takes half a minute, so later runs compare with what is pinned.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.artifacts.fetch import pull
from tests.e2e.reference.greedy import Case, continue_greedily, sha256_of
from tests.e2e.reference.prompts import PROMPTS
from worker.models.registry import build_model
from worker.models.tensor_names import Transform, WeightFormat, file_name_of, transform_of

FILE = Path(__file__).with_name("gemma3_ids.json")
MODEL = "gemma3-270m"
NUM_TOKENS = 24
NAMES = ("fact", "python", "japanese", "emoji", "table", "journal")
"""Of the prompts; the journal is longer than the window of 512."""


def load() -> tuple[str, dict[str, Case]]:
    """Return the digest of the model's file and the pinned cases by name."""
    pinned = json.loads(FILE.read_text())
    return pinned["model_sha256"], {name: Case(**case) for name, case in pinned["cases"].items()}


def prompt_ids(artifact: ModelArtifact) -> dict[str, list[int]]:
    """Return the ids of every prompt by name, BOS in front."""
    return {name: artifact.tokenizer.encode_text(PROMPTS[name], add_bos=True) for name in NAMES}


def load_transformers(artifact: ModelArtifact) -> Gemma3ForCausalLM:
    """Return transformers' model with the artifact's weights, less the one that GGUF folds into norms."""
    config = {key: value for key, value in artifact.config.items() if key != "model_type"}
    theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling")
    assert scaling is None
    kinds = {"full_attention": theta, "sliding_attention": 10_000.0}
    ropes = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in kinds.items()}
    model = Gemma3ForCausalLM(Gemma3TextConfig(**config, rope_parameters=ropes))
    state = {}
    for name in build_model(artifact.config).plan.parameters:
        values = artifact.tensors[file_name_of(name, WeightFormat.GGUF)].to_float32()
        if transform_of("gemma3", WeightFormat.HUGGING_FACE, name) is Transform.ADD_ONE:
            values -= 1
        state[file_name_of(name, WeightFormat.HUGGING_FACE)] = torch.from_numpy(values)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    return model.eval()


def compute(artifact: ModelArtifact) -> dict[str, Case]:
    """Compute every case."""
    model = load_transformers(artifact)
    return {name: continue_greedily(model, ids, NUM_TOKENS) for name, ids in prompt_ids(artifact).items()}


def main() -> None:
    """Write the file anew."""
    path = pull(MODEL)
    artifact = open_artifact(path)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for name, ids in prompt_ids(artifact).items():
        assert ids == theirs.encode(PROMPTS[name]), name
    cases = {name: asdict(case) for name, case in compute(artifact).items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    FILE.write_text(f'{{"model_sha256": "{sha256_of(path)}", "cases": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
