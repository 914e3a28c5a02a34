"""Small random DeBERTa models, and token ids for them."""

from __future__ import annotations

import itertools

import numpy as np

from tests.kit.lazy import LazyModule

torch = LazyModule("torch")
transformers = LazyModule("transformers")
deberta = LazyModule("racer_core.encoder.deberta")
WORDS = 100
MOST = 64
SHAPES = list(itertools.product((1, 2, 4, 8), (16, 32, MOST)))  # of `batches.shapes(8, MOST)`


def model(dtype=None, **changed):
    """Random, and with biases and norms that are none of 0 and 1, so that leaving one out shows."""
    config = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": MOST,
        "relative_attention": True,
        "position_buckets": 8,  # distances beyond 4 share rows
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = transformers.DebertaV2Model(
            transformers.DebertaV2Config(**(config | changed))
        ).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.to(dtype or torch.float32)


def texts(*lengths):
    """Random ids (B, T) and their mask, for given lengths of the rows; the rest is padding."""
    rng = np.random.default_rng(sum(lengths))
    ids, mask = np.zeros((2, len(lengths), max(lengths)), dtype=np.int64)
    for row, length in enumerate(lengths):
        ids[row, :length] = rng.integers(5, WORDS, length)
        mask[row, :length] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)
