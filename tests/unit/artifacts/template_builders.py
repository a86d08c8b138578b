"""Templates of several families, and a tiny vocabulary with their control tokens."""

from artifact_builders import gguf_metadata

from services.artifacts.gguf_tokenizer import tokenizer_from_gguf
from services.artifacts.tokenizer import ModelTokenizer

CONTROLS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "[INST]", "[/INST]", "<|user|>"]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = false %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system is not false %}{% set content = '<<SYS>>\\n' + system"
    " + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content | trim + '</s>\n' }}{% endfor %}"
THINKING = (
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}{%- endfor %}"
    "{%- for message in messages %}{%- set content = message.content %}"
    "{%- if message.role == 'assistant' and '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "zephyr": ZEPHYR, "thinking": THINKING}


def tiny_tokenizer() -> ModelTokenizer:
    """A tiny vocabulary with control tokens of several families."""
    metadata = gguf_metadata(controls=CONTROLS)
    bos_id = metadata["tokenizer.ggml.tokens"].index("<s>")
    extra = {"tokenizer.ggml.bos_token_id": bos_id, "tokenizer.ggml.eos_token_id": bos_id + 1}
    return tokenizer_from_gguf({**metadata, **extra}, "tiny")
