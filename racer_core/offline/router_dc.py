"""Training of RouterDC: fine-tunes an encoder and one embedding per candidate.

Chen et al. 2024, "RouterDC: Query-Based Router by Dual Contrastive Learning" (NeurIPS), Sec. 3.
Differences from the authors' code (shuhao02/RouterDC): negatives are drawn at each step, and so are
positives of binary rows, which do not rank candidates; a query is never its own positive; queries
are clustered by their embeddings, without t-SNE; the last step is kept, where theirs keeps the step
that is best on test rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from racer_core.encoder.base import Encoder, EncoderSpec, Forward
from racer_core.encoder.hub import find_model
from racer_core.encoder.huggingface import HuggingFaceEncoder, load_model, load_tokenizer
from racer_core.encoder.pooling import pool
from racer_core.encoder.tokens import TextTokenizer, limited, padded
from racer_core.errors import InputError
from racer_core.offline.options import check_number
from racer_core.routers.checkpoint import Checkpoint
from racer_core.types import BoolArray, FloatArray

# Names of independent streams of random numbers. Each step has its own generator, so a resumed
# training draws the same numbers.
_ORDER, _CHOICES, _DROPOUT, _KEYS, _CLUSTERS = range(5)
_KEY_SCALE: Final = 0.78


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterDcSettings:
    """The paper's values; counts are upper limits if there are fewer candidates or rows."""

    steps: int = 1000
    batch: int = 32
    learning_rate: float = 5e-5  # of AdamW, constant
    weight_decay: float = 0.01
    positives: int = 3  # K+, right candidates a query is pulled to; of graded rows the best ones
    negatives: int = 3  # K-, wrong candidates each of them is held against
    strangers: int = 3  # H, queries of other clusters
    cluster_weight: float = 1.0  # lambda, of the loss between queries
    clusters: int = 5
    temperature: float = 1.0  # cosines are divided by it

    def __post_init__(self) -> None:
        """Refuse what is not a positive number; the two weights may be 0."""
        for each in fields(self):
            zero = each.name in ("weight_decay", "cluster_weight")
            like = cast(float, each.default)
            check_number(each.name, getattr(self, each.name), like=like, zero=zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningResult:
    """The result of training: candidate embeddings (K, D), the encoder, one loss a step."""

    keys: NDArray[np.float32]
    encoder: HuggingFaceEncoder
    losses: list[float]


class _DualModel(nn.Module):
    """The encoder E(x; w) in float32, and the candidate embeddings k."""

    def __init__(self, spec: EncoderSpec, candidates: int, seed: int) -> None:
        super().__init__()
        self._spec = spec
        self._local = find_model(spec.name, spec.pin)
        model, tokenizer = load_model(self._local, "float32")
        self.encoder: Any = model
        self._tokenizer = TextTokenizer(limited(tokenizer, spec.max_tokens), spec.name)
        self._padding: int = tokenizer.pad_token_id or 0
        keys = _stream(seed, _KEYS).standard_normal((candidates, self.encoder.config.hidden_size))
        self.keys = nn.Parameter(torch.from_numpy(keys).float() * _KEY_SCALE)
        self.to(spec.backend).train()  # a loaded model has dropout off

    def forward(self, texts: Sequence[str]) -> torch.Tensor:
        """Embeddings of length 1, shape (B, D)."""
        ids, mask = (
            torch.from_numpy(each).to(self._spec.backend)
            for each in padded(self._tokenizer(texts), self._padding)
        )
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return nn.functional.normalize(pool(hidden, mask, self._spec.pooling), dim=1)

    def save(self, folder: Path) -> None:
        """An ordinary Hugging Face folder."""
        self.encoder.save_pretrained(folder)
        # A fresh tokenizer: the one in use truncates.
        load_tokenizer(self._local).save_pretrained(folder)
        for weights in folder.glob("*.safetensors"):
            weights.chmod(0o644)  # the gateway may run as another user than the training


def fine_tune(
    texts: Sequence[str],
    labels: BoolArray,
    *,
    encoder: Encoder,
    folder: Path,
    settings: RouterDcSettings,
    quality: FloatArray | None = None,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int, float], None] = lambda _step, _loss: None,
) -> FineTuningResult:
    """Train, and save the encoder into a folder of its own.

    On a CPU the same seed and number of threads give the same weights, interrupted or not.

    Args:
        texts: Training queries, n of them.
        labels: Their correctness, shape (n, K).
        encoder: Starting point; its device, pooling and token limit are kept. N-grams beside its
            embedding are used to cluster the queries, and not for training.
        folder: Folder of the fine-tuned encoder.
        settings: Numbers of steps, rates and counts.
        quality: Their grades, shape (n, K), NaN for a row without; None: no row has any.
        seed: Of batches, choices, dropout, clusters and the initial candidate embeddings.
        checkpoint: Stores the state for a resumed training; None stores nothing.
        progress: Called after each step, those of an earlier run included, with its number from 1
            and its loss.

    Raises:
        InputError: No rows, an encoder that is no transformer, or a loss that became NaN.
        ArtifactError: The checkpoint does not fit, or the encoder cannot be loaded or saved.
    """
    spec = encoder.spec
    if not texts:
        raise InputError("no training rows")
    if spec.kind != "huggingface":
        raise InputError(
            f"RouterDC fine-tunes an encoder, and {spec.name} has no weights for that: pass "
            "--encoder with the folder or hub name of a Hugging Face model"
        )
    if Path(spec.name).resolve() == folder.resolve():
        raise InputError(f"{folder} is where the trained encoder goes: begin with another one")
    model = _DualModel(spec, labels.shape[1], seed)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    reached = checkpoint.restore(model, optimiser) if checkpoint else None
    if reached:
        losses, clusters = reached.losses, reached.kept["clusters"].numpy()
    else:
        losses, clusters = [], _clusters(texts, encoder, settings, seed)
    for step, loss in enumerate(losses):
        progress(step + 1, loss)
    data = _Rows(texts, labels, clusters, quality)
    for step in range(len(losses), settings.steps):
        batch = data.take(_batch(len(texts), settings.batch, step, seed))
        with _own_generator(spec.backend, seed, step):
            loss = _loss(model, batch, settings, _stream(seed, _CHOICES, step))
            losses.append(_descend(optimiser, loss))
        if checkpoint and checkpoint.due(step + 1, settings.steps):
            checkpoint.save(model, optimiser, losses, {"clusters": torch.from_numpy(clusters)})
        progress(step + 1, losses[-1])
    model.save(folder)
    return FineTuningResult(
        keys=model.keys.detach().cpu().numpy().copy(),
        encoder=HuggingFaceEncoder(
            str(folder),
            pooling=spec.pooling,
            max_tokens=spec.max_tokens,
            backend=spec.backend,
            dtype=spec.dtype,
            forward=cast(Forward, spec.forward),
        ),
        losses=losses,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Queries, their labels (n, K), their clusters (n,) and their grades (n, K), if any."""

    texts: Sequence[str]
    labels: BoolArray
    clusters: NDArray[np.int64]
    quality: FloatArray | None

    def take(self, rows: Sequence[int]) -> _Rows:
        quality = None if self.quality is None else self.quality[rows]
        texts = [self.texts[i] for i in rows]
        return _Rows(texts, self.labels[rows], self.clusters[rows], quality)


def _loss(
    model: _DualModel, batch: _Rows, settings: RouterDcSettings, rng: np.random.Generator
) -> torch.Tensor | None:
    """L_sample-LLM + lambda L_sample-sample of one batch; None if neither has a pair."""
    embeddings = model(batch.texts)
    keys = nn.functional.normalize(model.keys, dim=1)
    parts = [
        contrast(
            embeddings @ keys.T / settings.temperature,
            pick(batch.labels, settings.positives, rng, batch.quality),
            pick(~batch.labels, settings.negatives, rng),
        )
    ]
    if settings.cluster_weight:
        same = batch.clusters[:, None] == batch.clusters[None, :]
        others = ~np.eye(len(same), dtype=bool)
        between = contrast(
            embeddings @ embeddings.T / settings.temperature,
            pick(same & others, 1, rng),
            pick(~same, settings.strangers, rng),
        )
        parts.append(None if between is None else settings.cluster_weight * between)
    losses = [part for part in parts if part is not None]
    return torch.stack(losses).sum() if losses else None


def _descend(optimiser: torch.optim.Optimizer, loss: torch.Tensor | None) -> float:
    """One step of the optimiser; a batch without a loss changes nothing."""
    if loss is None:
        return 0.0
    value = float(loss.detach())
    if not math.isfinite(value):
        raise InputError(
            "the loss is no number any more; train with a smaller learning_rate, or a higher "
            "temperature"
        )
    optimiser.zero_grad()
    loss.backward()  # pyright: ignore[reportUnknownMemberType]
    optimiser.step()  # pyright: ignore[reportUnknownMemberType]
    return value


def _clusters(
    texts: Sequence[str], encoder: Encoder, settings: RouterDcSettings, seed: int
) -> NDArray[np.int64]:
    """Cluster ids of the queries by the encoder before training, shape (n,)."""
    own_seed = int(_stream(seed, _CLUSTERS).integers(2**63))
    return cluster(encoder.encode(texts).embeddings, settings.clusters, own_seed)


def _batch(count: int, size: int, step: int, seed: int) -> list[int]:
    """The rows of a step: successive random orders of all rows, cut into batches."""
    size = min(size, count)
    places = [divmod(place, count) for place in range(step * size, (step + 1) * size)]
    epochs = {epoch for epoch, _ in places}
    orders = {epoch: _stream(seed, _ORDER, epoch).permutation(count) for epoch in epochs}
    return [int(orders[epoch][place]) for epoch, place in places]


def _stream(seed: int, *key: int) -> np.random.Generator:
    """A separate generator for each purpose and step."""
    return np.random.default_rng([seed, *key])


@contextmanager
def _own_generator(backend: str, seed: int, step: int) -> Generator[None]:
    """Seeded dropout of one step; the process's generators are restored."""
    devices = [torch.cuda.current_device()] if backend == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(_stream(seed, _DROPOUT, step).integers(2**63)))
        yield


# k-means on embeddings, for RouterDC's groups of similar queries.

_ROUNDS = 100


def cluster(vectors: NDArray[np.float32], count: int, seed: int) -> NDArray[np.int64]:
    """The number of each row's nearest of at most ``count`` centres, shape (n,).

    Starts with k-means++ and ends when no row changes its cluster. With fewer distinct rows than
    ``count`` there are fewer clusters.
    """
    rng = np.random.default_rng(seed)
    centres = _start(vectors, count, rng)
    nearest = _nearest(vectors, centres)
    for _ in range(_ROUNDS):
        for number in range(len(centres)):
            members = vectors[nearest == number]
            if len(members):  # a centre that lost all its rows stays where it is
                centres[number] = members.mean(axis=0)
        before, nearest = nearest, _nearest(vectors, centres)
        if np.array_equal(before, nearest):
            break
    return nearest


def _start(
    vectors: NDArray[np.float32], count: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """k-means++ seeds: rows drawn with probabilities proportional to squared distance."""
    chosen = [int(rng.integers(len(vectors)))]
    distance = np.full(len(vectors), np.inf)
    while len(chosen) < count:
        gap = vectors - vectors[chosen[-1]]
        distance = np.minimum(distance, np.einsum("nd,nd->n", gap, gap).astype(np.float64))
        if not distance.sum() > 0:
            break
        chosen.append(int(rng.choice(len(vectors), p=distance / distance.sum())))
    return vectors[chosen].copy()


def _nearest(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """By squared distance, without the row's own square, which is the same for all centres."""
    squares = np.einsum("kd,kd->k", centres, centres)
    return np.argmin(squares - 2 * (vectors @ centres.T), axis=1)


# Contrastive loss of RouterDC, for query-candidate pairs and for query-query pairs.
#
# Chen et al. 2024, Eq. (3) and (5).

_TIE = 1e-7  # below the grid of grades, 1e-6: luck orders equal grades only


def pick(
    eligible: BoolArray,
    most: int,
    rng: np.random.Generator,
    grades: FloatArray | None = None,
) -> BoolArray:
    """At most ``most`` eligible columns of each row of (B, C).

    Args:
        eligible: The columns to choose from.
        most: How many to choose of each row.
        rng: Draws the columns, of graded rows those among equal grades.
        grades: In [0, 1], shape (B, C); the largest are taken. A row of NaN has none.
    """
    priority = rng.random(eligible.shape)
    if grades is not None:
        priority = np.nan_to_num(grades, nan=0.0) + _TIE * priority
    priority = np.where(eligible, priority, -1.0)
    rank = np.argsort(np.argsort(-priority, axis=1), axis=1)
    return eligible & (rank < most)


def contrast(
    similarity: torch.Tensor, positive: BoolArray, negative: BoolArray
) -> torch.Tensor | None:
    """Mean over rows of the sum over positives t of -log(e^s_t / (e^s_t + sum_negatives e^s)).

    Args:
        similarity: Shape (B, C), cosines over the temperature.
        positive: Columns pulled to each row.
        negative: Columns that each positive is contrasted with.

    Returns:
        The loss; None if no row has both. A row without both adds nothing to the sum.
    """
    counted = positive.any(axis=1) & negative.any(axis=1)
    if not counted.any():
        return None
    device = similarity.device
    chosen = similarity[torch.from_numpy(counted).to(device)]
    pulled, pushed = (torch.from_numpy(mask[counted]).to(device) for mask in (positive, negative))
    against = torch.logsumexp(chosen.masked_fill(~pushed, -torch.inf), dim=1, keepdim=True)
    terms = nn.functional.softplus(against - chosen)
    return terms[pulled].sum() / len(similarity)
