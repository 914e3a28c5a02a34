"""A tiny encoder folder and a trained router, made once."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.racer import Racer
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import synthetic_rows

torch = LazyModule("torch")
transformers = LazyModule("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory):
    """A folder with a random DeBERTa of width 32 that knows the words a to h."""
    folder = tmp_path_factory.mktemp("encoders") / "tiny"
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    config = transformers.DebertaV2Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        type_vocab_size=0,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.DebertaV2Model(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def router_folder(tmp_path_factory):
    """An artifact of a KNN router on character n-grams, trained on synthetic rows."""
    folder = tmp_path_factory.mktemp("artifacts") / "knn"
    rows, validation = synthetic_rows(300, seed=1), synthetic_rows(150, seed=2)
    train(rows, validation, folder, encoder=CharNgramEncoder(), kind="knn")
    return folder


@pytest.fixture(scope="session")
def racer(router_folder):
    """That artifact, opened."""
    return Racer.load(router_folder)
