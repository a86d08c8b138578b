"""How transformers goes on from every prompt, greedily, pinned in greedy_ids.json.

The model is transformers' Llama in float32 with the weights that `services.artifacts` dequantises, and the
prompts go in as the ids of our own tokenizer: only the computation is theirs. `python -m
tests.e2e.reference.greedy` writes the file anew.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.artifacts.fetch import pull
from tests.e2e.reference.prompts import CHATS, PROMPTS
from tests.unit.executors.tiny_models import unpermute
from worker.models.tensor_names import WeightFormat, file_name_of

FILE = Path(__file__).with_name("greedy_ids.json")
NUM_TOKENS = 48
MIN_MARGIN = 1e-3
"""Two best logits nearer than this may change places by rounding alone."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt and how transformers goes on."""

    prompt_ids: list[int]
    ids: list[int]
    margins: list[float]
    """Best logit minus the second one, of each step."""

    @property
    def certain_ids(self) -> list[int]:
        """The ids before the first step that rounding could turn."""
        unsure = (step for step, margin in enumerate(self.margins) if margin < MIN_MARGIN)
        return self.ids[: next(unsure, len(self.ids))]


def load() -> tuple[str, dict[str, Case]]:
    """Return the digest of the model's file and the pinned cases by name."""
    pinned = json.loads(FILE.read_text())
    return pinned["model_sha256"], {name: Case(**case) for name, case in pinned["cases"].items()}


def prompt_ids(artifact: ModelArtifact) -> dict[str, list[int]]:
    """Return the ids of every prompt and chat by name."""
    assert artifact.template is not None
    texts = {name: artifact.tokenizer.encode_text(text, add_bos=True) for name, text in PROMPTS.items()}
    return texts | {name: artifact.template.encode(chat) for name, chat in CHATS.items()}


def load_transformers(artifact: ModelArtifact) -> LlamaForCausalLM:
    """Return transformers' model with the artifact's weights."""
    config = dict(artifact.config)
    rope = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    assert config.pop("rope_scaling") is None
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config, rope_parameters=rope))
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    roles = ("attention_norm", "q", "k", "v", "o", "ffn_norm", "gate", "up", "down")
    layers = range(config["num_hidden_layers"])
    state = {}
    for name in ("embedding", "final_norm", *(f"layers.{n}.{role}" for n in layers for role in roles)):
        values = artifact.tensors[file_name_of(name, WeightFormat.GGUF)].to_float32()
        if (role := name.rsplit(".", 1)[-1]) in heads:
            values = unpermute(values, heads[role])
        state[file_name_of(name, WeightFormat.HUGGING_FACE)] = torch.from_numpy(values)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


def continue_greedily(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int = NUM_TOKENS) -> Case:
    """Return the ids that transformers draws, its KV cache in use."""
    ids: list[int] = []
    margins: list[float] = []
    fresh, past = list(prompt), None
    with torch.inference_mode():
        for _ in range(num_tokens):
            answer = model(torch.tensor([fresh]), past_key_values=past, use_cache=True, logits_to_keep=1)
            past = answer.past_key_values
            best = answer.logits[0, -1].topk(2)
            fresh = [int(best.indices[0])]
            ids += fresh
            margins.append(round(float(best.values[0] - best.values[1]), 5))
    return Case(list(prompt), ids, margins)


def compute(path: Path) -> dict[str, Case]:
    """Compute every case."""
    artifact = open_artifact(path)
    model = load_transformers(artifact)
    return {name: continue_greedily(model, ids) for name, ids in prompt_ids(artifact).items()}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Write the file anew."""
    path = pull("smollm2-135m-instruct")
    cases = {name: asdict(case) for name, case in compute(path).items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    FILE.write_text(f'{{"model_sha256": "{sha256_of(path)}", "cases": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
