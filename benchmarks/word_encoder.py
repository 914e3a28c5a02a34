"""An encoder of mDeBERTa-v3-base's shape with random weights, its tokens words, and rows for it.

Speed depends on shapes alone.
"""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import DebertaV2Config, DebertaV2Model, PreTrainedTokenizerFast

from racer_core.types import LabelledRow, LabelledRows

POOL = ("one", "two", "three", "four")
_WORDS = 5_000  # `w0` and so on
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
_CONFIG = DebertaV2Config(
    vocab_size=251_000,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=512,
    relative_attention=True,
    position_buckets=256,
    pos_att_type=["p2c", "c2p"],
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    type_vocab_size=0,
)


def made(folder: Path, *, tiny: bool) -> Path:
    """A folder with the model, and a tokenizer that makes a token of every word."""
    torch.manual_seed(0)
    config = copy.deepcopy(_CONFIG)
    if tiny:
        config.update({"hidden_size": 96, "num_hidden_layers": 2, "intermediate_size": 192})
    DebertaV2Model(config).save_pretrained(folder)
    words = (*_SPECIAL, *(f"w{number}" for number in range(_WORDS)))
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_max_length=config.max_position_embeddings,
    ).save_pretrained(folder)
    return folder


def texts(seed: int, lengths: Iterable[int]) -> Iterator[str]:
    """Texts with ``lengths`` tokens, the two special tokens included."""
    rng = np.random.default_rng(seed)
    for length in lengths:
        yield " ".join(f"w{number}" for number in rng.integers(0, _WORDS, length - 2))


def rows(seed: int, count: int) -> LabelledRows:
    """Short texts and random labels: only the router's shape matters."""
    right = np.random.default_rng(seed).random((count, len(POOL))) < 0.6
    found = (
        LabelledRow(query=text, correct=frozenset(np.array(POOL)[labels].tolist()))
        for text, labels in zip(texts(seed, [8] * count), right, strict=True)
    )
    return LabelledRows(pool=POOL, rows=tuple(found))
