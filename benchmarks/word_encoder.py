"""An encoder with random weights whose tokens are words: for speed, which depends on shapes."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import DebertaV2Config, DebertaV2Model, PreTrainedTokenizerFast

WORDS = 5_000  # `w0` and so on
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")


def made(folder: Path, config: DebertaV2Config) -> Path:
    """A folder with a model of that shape, and a tokenizer that makes a token of every word."""
    torch.manual_seed(0)
    DebertaV2Model(config).save_pretrained(folder)
    known = min(WORDS, config.vocab_size - len(_SPECIAL))  # a tiny model takes others as unknown
    words = (*_SPECIAL, *(f"w{number}" for number in range(known)))
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
