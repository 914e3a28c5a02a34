"""Training of the demo's query encoder: a small DebertaV2 with mDeBERTa's architecture.

Run ``python deploy/demo/train_encoder.py`` after ``label_pool.py``. It uses only the training
rows, writes ``encoder/`` as a Hugging Face folder, and then checks on the test rows that a KNN
router on its mean-pooled embeddings beats the best single candidate.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import torch
from charmodel import save_tokenizer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from router_check import ALPHA, RouterQuality, evaluate
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2Model,
    PreTrainedTokenizerFast,
)

SEED: Final = 20260302
EPOCHS: Final = 12
"""On the validation rows 8, 12 and 30 epochs have top-1 .863, .860 and .850: longer training only
makes the training rows, which are the neighbours, look surer than they are."""

BATCH: Final = 128
PEAK_RATE: Final = 1e-3
TEMPERATURE: Final = 0.1
VOCABULARY: Final = 1024

SPELT_OUT: Final = r"\d|\p{L}(?=\p{L}*[\"“])|[IVXLCDM](?=[IVXLCDM]*(?!\p{L}))"
"""Digits, letters of quoted words and Roman numerals are one token each: how long they are is
how hard the question is, and that must be visible to the encoder."""

LEAST_GAIN: Final = 0.05
MOST_CALLED: Final = 3.0


def make_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of these texts; it has a token for any Unicode."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPELT_OUT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_max_length=512,
    )


def make_encoder(vocabulary: int) -> DebertaV2Model:
    """Return a freshly initialised encoder: mDeBERTa-v3-base's attention, a smaller size."""
    torch.manual_seed(SEED)
    config = DebertaV2Config(
        vocab_size=vocabulary,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=384,
        max_position_embeddings=512,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=32,
        max_relative_positions=-1,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        pad_token_id=0,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    return DebertaV2Model(config)


def read_rows(path: Path) -> tuple[list[str], NDArray[np.bool_]]:
    """Return the texts and the labels, shape (n, K), of one split."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row["query"] for row in rows], np.array([[*row["correct"].values()] for row in rows])


def pool_tokens(
    encoder: DebertaV2Model, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> Tensor:
    """Return the mean of the last hidden states over the tokens that are not padding."""
    tokens = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    tokens.pop("token_type_ids", None)
    hidden = encoder(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(dim=1) / mask.sum(dim=1)


def neighbour_loss(embeddings: Tensor, right: Tensor) -> Tensor:
    """Return the cross entropy of a soft KNN inside the batch, each row without itself.

    It trains what the router does with the embeddings: neighbours by cosine vote on who is right.
    """
    directions = nn.functional.normalize(embeddings, dim=1)
    similarity = directions @ directions.T / TEMPERATURE
    similarity = similarity.masked_fill(torch.eye(len(right), dtype=torch.bool), -math.inf)
    voted = similarity.softmax(dim=1) @ right
    return nn.functional.binary_cross_entropy(voted.clamp(1e-4, 1 - 1e-4), right)


def train(
    encoder: DebertaV2Model,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    right: NDArray[np.bool_],
    epochs: int,
) -> None:
    """Fit the encoder, and a linear head that is thrown away, to who is right on what."""
    labels = torch.tensor(right, dtype=torch.float32)
    head = nn.Linear(encoder.config.hidden_size, labels.shape[1])
    weights = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=PEAK_RATE, weight_decay=0.05)
    steps = epochs * (len(texts) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_RATE, total_steps=steps, pct_start=0.1
    )
    order = np.random.default_rng(SEED)
    encoder.train()
    with Progress(console=Console()) as progress:
        task = progress.add_task("encoder", total=steps)
        for _ in range(epochs):
            shuffled = order.permutation(len(texts))
            for start in range(0, len(texts) - BATCH + 1, BATCH):
                rows = shuffled[start : start + BATCH]
                pooled = pool_tokens(encoder, tokenizer, [texts[row] for row in rows])
                loss = nn.functional.binary_cross_entropy_with_logits(head(pooled), labels[rows])
                loss = loss + neighbour_loss(pooled, labels[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                schedule.step()
                progress.update(task, advance=1, description=f"loss {loss.item():.3f}")
    encoder.eval()


@torch.inference_mode()
def embed(
    encoder: DebertaV2Model, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> NDArray[np.float64]:
    """Return the embeddings of texts, shape (n, hidden)."""
    encoder.eval()
    starts = range(0, len(texts), BATCH)
    pooled = [pool_tokens(encoder, tokenizer, texts[start : start + BATCH]) for start in starts]
    return torch.cat(pooled).double().numpy()


def judge(encoder: DebertaV2Model, tokenizer: PreTrainedTokenizerFast, data: Path) -> RouterQuality:
    """Return how KNN routes the test rows on this encoder's embeddings."""
    splits = [read_rows(data / f"{name}.jsonl") for name in ("train", "calibration", "test")]
    return evaluate(*((embed(encoder, tokenizer, texts), right) for texts, right in splits))


def failures(trained: RouterQuality, untrained: RouterQuality, best_single: float) -> list[str]:
    """Return a sentence for each property that the encoder should have and has not."""
    checks = {
        "top-1 accuracy is not above the untrained twin's": trained.top1 > untrained.top1,
        "the Brier score is not below the untrained twin's": trained.brier < untrained.brier,
        "top-1 is not 5 points above the best single candidate": trained.top1
        >= best_single + LEAST_GAIN,
        "more than 3 of 5 candidates are called (paper)": trained.size_paper <= MOST_CALLED,
        "more than 3 of 5 are called (answerable)": trained.size_answerable <= MOST_CALLED,
    }
    return [sentence for sentence, holds in checks.items() if not holds]


def show(
    trained: RouterQuality, untrained: RouterQuality, best_single: float, oracle: float
) -> None:
    """Print the figures."""
    table = Table("test rows", "trained", "untrained twin", title=f"KNN, alpha {ALPHA}")
    twin = asdict(untrained)
    for name, value in asdict(trained).items():
        table.add_row(name, f"{value:.4f}", f"{twin[name]:.4f}")
    console = Console()
    console.print(table)
    console.print(f"best single candidate {best_single:.4f}, oracle {oracle:.4f}")


def main() -> int:
    """Train, save, load from the files alone, measure; return 1 when a check fails."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=here / "data")
    parser.add_argument("--out", type=Path, default=here / "encoder")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Repeatable; and this is small enough that threads hardly help.
    began = time.perf_counter()
    texts, right = read_rows(arguments.data / "train.jsonl")
    tokenizer = make_tokenizer(texts)
    encoder = make_encoder(len(tokenizer))
    train(encoder, tokenizer, texts, right, arguments.epochs)
    encoder.save_pretrained(arguments.out)
    (arguments.out / "model.safetensors").chmod(0o644)  # Written for its owner alone.
    save_tokenizer(tokenizer, arguments.out)
    minutes = (time.perf_counter() - began) / 60
    encoder = AutoModel.from_pretrained(arguments.out)
    tokenizer = AutoTokenizer.from_pretrained(arguments.out)
    trained = judge(encoder, tokenizer, arguments.data)
    untrained = judge(make_encoder(len(tokenizer)), tokenizer, arguments.data)
    answered = read_rows(arguments.data / "test.jsonl")[1]
    best_single, oracle = float(answered.mean(axis=0).max()), float(answered.any(axis=1).mean())
    show(trained, untrained, best_single, oracle)
    console = Console()
    parameters = sum(weight.numel() for weight in encoder.parameters())
    console.print(f"{parameters:,} parameters, trained in {minutes:.1f} minutes")
    for failure in (failed := failures(trained, untrained, best_single)):
        console.print(f"FAILED: {failure}", style="red")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
