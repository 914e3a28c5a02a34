"""Architecture of a demo candidate: a small character-level Llama as Hugging Face files.

The module knows no skills and no training data; ``train_pool.py`` trains the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_TOKENS: Final = 16
"""Tokens a candidate may generate; the longest right answer has 15 characters and an end mark."""

CONTEXT: Final = 1024

SPECIAL: Final = ("<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>")

ALPHABET: Final = "\n" + "".join(map(chr, range(32, 127))) + "äöüÄÖÜß„“”‚‘’–€°éèàçñ"

CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{%- set content = message['content'] or '' -%}"
    "{%- if content is not string -%}"
    "{%- set content = content | map(attribute='text') | join -%}"
    "{%- endif -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- '<|assistant|>' + content + '<|end|>' -}}"
    "{%- else -%}"
    "{{- '<|user|>' + content -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def vocabulary() -> dict[str, int]:
    """Return the id of every special token and character."""
    return {token: number for number, token in enumerate((*SPECIAL, *ALPHABET))}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a character; a character it lacks becomes ``<unk>``."""
    backend = Tokenizer(models.WordLevel(vocabulary(), unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(hidden: int, layers: int, intermediate: int) -> LlamaForCausalLM:
    """Return a freshly initialised candidate; heads of 32, a size that vLLM has kernels for."""
    ids = vocabulary()
    config = LlamaConfig(
        vocab_size=len(ids),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        pad_token_id=ids["<pad>"],
        bos_token_id=None,
        eos_token_id=ids["<|end|>"],
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a tokenizer so that transformers 4, on which other servers may stand, loads it too."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    # Names that only version 5 knows; the tokens themselves stand in tokenizer.json.
    for name in ("backend", "extra_special_tokens"):
        config.pop(name, None)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def save_candidate(model: LlamaForCausalLM, folder: Path) -> None:
    """Write an ordinary Hugging Face folder: bfloat16 weights that ask to be run as float32."""
    ids = vocabulary()
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        pad_token_id=ids["<pad>"],
        eos_token_id=ids["<|end|>"],
    )
    model.save_pretrained(folder)
    save_tokenizer(make_tokenizer(), folder)
    # The file is halved by bfloat16; arithmetic in it would make answers depend on the batch.
    config = LlamaConfig.from_pretrained(folder)
    config.dtype = "float32"
    config.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # Written for its owner alone.
