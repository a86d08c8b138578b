"""Write a model folder without weights, for simulations on a machine that has no model and no network.

It has what gateway and simulated worker read: sizes, a byte-level tokeniser with some whole words, a chat
template. Its answers are made up; its shape is not.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 1024
CONTEXT_TOKENS = 8192
END, BEGIN_TURN = "<|end|>", "<|turn|>"
_NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
"""A safetensors file whose header names nothing."""
_TEMPLATE = (
    "{% for message in messages %}" + BEGIN_TURN + "{{ message.role }}\n{{ message.content }}" + END + "\n"
    "{% endfor %}{% if add_generation_prompt %}" + BEGIN_TURN + "assistant\n{% endif %}"
)
_WORDS = (
    "the of and to in is that for it as with on be by this are or from at which one have not but all were "
    "when there can more if no out other so what time up go about than into could state only new year some "
    "take come these know see use get like then first any work now may such give over think most even find "
    "day also after way many must look before great back through long where much should well people down "
    "own just because good each those feel seem how high too place little world very still nation hand old "
    "life tell write become here show house both between need mean call develop under last right move thing"
)


def write_sim_model(folder: Path) -> Path:
    """Fill `folder` (made if need be) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END, BEGIN_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f" {word}" for word in _WORDS.split()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": CONTEXT_TOKENS,
        "eos_token_id": tokenizer.token_to_id(END),
    }
    settings = {"eos_token": END, "chat_template": _TEMPLATE}
    (folder / "model.safetensors").write_bytes(_NO_TENSORS)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder
