"""Train a router on labelled rows and bind it into an artifact."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from racer_core import artifacts
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.reasoning import REASONING, ReasoningFilter
from racer_core.aggregation.rule import AnswerRule, compares_texts
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.wording import SHIPPED
from racer_core.artifacts import Artifact, CandidateSpec
from racer_core.calibration.augmentation import checked_scores
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.base import Encoder, Forward, Pooling
from racer_core.encoder.char_ngrams import SPEC as CHAR_NGRAMS
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.components import principal_components
from racer_core.encoder.hub import copy_model
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.hybrid import HybridEncoder
from racer_core.encoder.onnx import DTYPE as INT8
from racer_core.encoder.onnx import OnnxEncoder, export
from racer_core.encoder.word_vectors import WordVectorEncoder, has_word_vectors
from racer_core.errors import ArtifactError, RowsError
from racer_core.offline.fit import (
    RouterChoice,
    Rows,
    TrainingResult,
    digest,
    fit,
    fit_embedded,
)
from racer_core.offline.one_thread import one_thread
from racer_core.offline.reporting import Progress, RememberingEncoder, ReportingEncoder, silent
from racer_core.offline.selection import ScoredRows, choose_patterns, choose_tau
from racer_core.offline.stacking import CROSS_FITTED, stack
from racer_core.offline.training_rows import sampled_units, with_labels
from racer_core.offline.wordings import fit_text_rule
from racer_core.records.conversation import fingerprint
from racer_core.records.near_copies import count_near_copies
from racer_core.records.overlap import is_fresh_traffic
from racer_core.records.units import rows_units
from racer_core.routers.base import Batch, Router, RouterOutput, on_grid
from racer_core.routers.knn import KnnRouter
from racer_core.types import BoolArray, LabelledRows


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderChoice:
    """The encoder to open; None values depend on the machine (GPU, native bfloat16).

    With ``export_to`` its files are copied into that folder, in int8 exported, and opened there.
    """

    name: str
    pooling: Pooling = "mean"
    max_tokens: int = 512
    backend: str | None = None
    dtype: str | None = None
    forward: Forward | None = None
    lexical: bool = False  # hashed character n-grams beside it
    export_to: Path | None = None

    def open(self) -> Encoder:
        """Open the encoder: n-grams by their name, a folder's word vectors, or a transformer."""
        if self.name == CHAR_NGRAMS.name:
            return CharNgramEncoder()
        name = self.name
        if self.export_to is not None and self.dtype != INT8:
            copy_model(name, self.export_to)
            name = str(self.export_to)
        if has_word_vectors(name):
            encoder: Encoder = WordVectorEncoder(name, max_tokens=self.max_tokens)
        elif self.dtype == INT8:
            encoder = self._exported()
        else:
            encoder = HuggingFaceEncoder(
                name,
                pooling=self.pooling,
                max_tokens=self.max_tokens,
                backend=self.backend,
                dtype=self.dtype,
                forward=self.forward,
            )
        return HybridEncoder(encoder) if self.lexical else encoder

    def _exported(self) -> OnnxEncoder:
        if self.backend == "cuda" or self.forward is not None:
            raise ArtifactError(
                "an int8 encoder is computed by ONNX Runtime on a CPU: leave out `--backend cuda` "
                "and `--forward`"
            )
        if self.export_to is None:
            raise ArtifactError("an int8 encoder is exported into an artifact: `racer train`")
        export(self.name, self.export_to, max_tokens=self.max_tokens)
        return OnnxEncoder(str(self.export_to), pooling=self.pooling)


def check_queries(rows: LabelledRows, source: str) -> None:
    """Refuse rows without a query, since a router learns from texts, and rows with weights.

    One rate of sampling gives all rows one weight, which says nothing.

    Raises:
        RowsError: A row has no query, or weights differ, which only calibration uses.
    """
    if any(not query for query in rows.queries):
        raise RowsError(
            source,
            [
                "rows of router scores alone have no text to embed: rows of a gateway's sample "
                "have one with `watching.store_requests: true`"
            ],
        )
    if rows.weights is not None and (rows.weights != rows.weights[0]).any():
        raise RowsError(
            source,
            [
                "rows have a `weight`, which only `racer calibrate` uses: leave the weights out, "
                "and read the results as those of the rows, not of served queries"
            ],
        )


def check_graded(rows: LabelledRows, source: str) -> None:
    """Refuse rows without grades, which the risk target ``quality`` needs.

    Raises:
        RowsError: How many rows have none.
    """
    if without := sum(row.quality is None for row in rows.rows):
        raise RowsError(
            source,
            [
                f"{without} of {len(rows)} rows have no `quality`: grade every candidate of every "
                "row, or choose the risk target answerable or paper"
            ],
        )


def train(
    rows: LabelledRows,
    validation: LabelledRows | None,
    folder: Path,
    *,
    encoder: Encoder,
    kind: str,
    options: Mapping[str, Any] | None = None,
    steps: int | None = None,
    resume: bool = False,
    seed: int = 0,
    candidates: Sequence[CandidateSpec] | None = None,
    false_abstain_budget: float | None = 0.01,
    equality: Equality = Equality.AUTO,
    reasoning: ReasoningFilter = REASONING,
    report: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Train, choose tau and the weights of the patterns on the validation rows, and save.

    The same rows, seed and encoder give the same files, in every process and with any number of
    threads; RouterDC on a CPU only with the same number. Rows without a label are left out, of a
    gateway's sample after their decision is noted. Weights of a sample's rates are not used: the
    router needs no rows like the traffic.

    Args:
        rows: Training rows; their queries may not be used for calibration.
        validation: Separate rows for tau, the p_null from which the gateway abstains, and for the
            weights of the patterns; None: the weights keep their defaults, and it never abstains.
        folder: Folder of the artifact.
        encoder: Opened encoder; its backend and dtype are bound into the artifact. RouterDC
            fine-tunes a copy and saves it into the folder.
        kind: ``knn``, ``mlp``, ``routerdc``, or the name of a plug-in.
        options: The router's settings; others keep their defaults.
        steps: Steps of RouterDC or epochs of an MLP; None takes their default.
        resume: Continue an interrupted training in this folder.
        seed: Seed of all random numbers of the training.
        candidates: Models and decoding parameters; None takes the names of the rows' pool.
        false_abstain_budget: Largest share of answerable validation rows on which tau may abstain;
            None never abstains.
        equality: Equality of answers, for the stacked vote and the rule of sentences; kinds that
            need more than texts fit neither.
        reasoning: Removes the reasoning from answers, for the same.
        report: JSON values that ``training.json`` notes, too, such as how the encoder was chosen.
        progress: Called at each stage.

    Raises:
        RowsError: Rows without a query, two files with different pools, or a query in both that
            are not said to be samples of traffic; rows that tell no candidate from another.
        InputError: Unknown options, or a training that diverges.
        ArtifactError: The folder cannot be written, holds another interrupted training, or a
            plug-in fails.
    """
    choice = RouterChoice(kind=kind, options=options or {}, steps=steps, resume=resume, seed=seed)
    specs = tuple(candidates or (CandidateSpec(name=name) for name in rows.pool))
    pool = tuple(spec.name for spec in specs)
    validation = rows[:0] if validation is None else validation
    units = sampled_units(rows), sampled_units(validation)
    rows = checked_rows(rows, pool, "training rows")
    if validation.rows:
        validation = checked_rows(validation, pool, "validation rows")
    if both := units[0] & units[1]:
        raise RowsError(
            "validation rows",
            [
                f"{len(both)} sampled decisions or conversations are among the training rows, too: "
                "divide the sample by `racer split`"
            ],
        )
    salt = _salt(seed, pool, rows, validation)
    training_prints = {fingerprint(salt, query) for query in rows.queries}
    validation_prints = tuple(fingerprint(salt, query) for query in validation.queries)
    shared = sum(each in training_prints for each in validation_prints)
    if shared and not is_fresh_traffic(validation_prints, training_prints, validation.kind):
        raise RowsError(
            "validation rows",
            [
                f"{shared} of {len(validation)} are training rows too: leave them out of one file, "
                "or say that both are random samples of traffic, if they are two samples"
            ],
        )
    labels = rows.labels(pool)
    _check_learnable(labels)
    fitted = fit(
        choice,
        Rows.of(rows, pool),
        Rows.of(validation, pool),
        pool=pool,
        encoder=RememberingEncoder(ReportingEncoder(encoder, progress)),
        folder=folder,
        progress=progress,
    )
    router = fitted.router
    output = RouterOutput(np.empty((0, len(pool))))
    if validation.rows:
        output = router.predict(Batch(validation.queries, fitted.encoder))
    held_out = ScoredRows(
        pool=pool,
        fingerprints=validation_prints,
        scores=checked_scores(on_grid(output.scores)),
        neighbours=output.neighbours,
        labels=validation.labels(pool),
    )
    patterns = choose_patterns(PatternModel.of(labels), held_out)
    if isinstance(router, KnnRouter):
        router = router.reaching(patterns.neighbours)
        patterns = replace(patterns, neighbours=router.reach)
    embeddings = fitted.encoder.encode(rows.queries).embeddings
    with one_thread():
        components = principal_components(embeddings)
    rule = None
    if compares_texts(equality):
        plain = AnswerRule(equality=equality, reasoning=reasoning)
        fitted_rule = fit_text_rule(rows.rows, labels, pool, plain, rows_units(rows))
        rule = replace(plain, text=fitted_rule or SHIPPED)
    artifact = Artifact(
        candidates=specs,
        encoder=fitted.encoder.spec,
        router=router,
        patterns=patterns,
        stacked=_stacked(choice, fitted, rows, validation, pool, salt, rule),
        text_rule=None if rule is None or rule.text is SHIPPED else rule.text,
        null_threshold=choose_tau(held_out.scores, held_out.labels, false_abstain_budget),
        salt=salt,
        training_fingerprints=frozenset(training_prints),
        validation_fingerprints=frozenset(held_out.fingerprints),
        sample_fingerprints=frozenset(fingerprint(salt, each) for each in units[0] | units[1]),
        longest_text=max(map(len, [*rows.queries, *validation.queries])),
        components=components,
    )
    if output.similarity is not None:
        artifact = replace(artifact, validation_copies=count_near_copies(output.similarity))
    saved = artifacts.save(artifact, folder)
    if fitted.losses or report:
        settings = {"router": kind, "seed": seed, **fitted.settings, **(report or {})}
        write_log(folder, fitted.losses, settings)
    if fitted.checkpoint:
        fitted.checkpoint.remove()
    return saved


def _check_learnable(labels: BoolArray) -> None:
    """Refuse training rows (n, K) that tell no candidate from another. Raises RowsError."""
    if labels.shape[1] < 2:
        problem = "a router chooses among candidates, and their pool has one: add another"
    elif not labels.any():
        problem = (
            "no candidate is right in any of them: check references and grade, or add a candidate "
            "that can answer such questions"
        )
    elif labels.all():
        problem = (
            "every candidate is right in all of them, so any one will do: serve the cheapest "
            "alone, or label harder questions"
        )
    else:
        return
    raise RowsError("training rows", [problem])


def checked_rows(rows: LabelledRows, pool: Sequence[str], source: str) -> LabelledRows:
    """The rows of this pool that have labels. Raises RowsError."""
    if set(rows.pool) != set(pool):
        raise RowsError(source, [f"their pool {list(rows.pool)} is not {list(pool)}"])
    found = with_labels(rows, source)
    check_queries(found, source)
    return found


def _salt(seed: int, pool: Sequence[str], *parts: LabelledRows) -> str:
    """A salt that only those know who have all rows with their labels and answers, and the seed.

    The salt breaks ties among validation rows, so a random one would change what they choose.
    """
    found = [str(seed), *pool]
    for rows in parts:
        found.append(digest(Rows.of(rows, pool)))
        found += [repr(sorted(row.answers.items())) for row in rows.rows]
    return artifacts.salt_of("\n".join(found).encode())


def _stacked(
    choice: RouterChoice,
    fitted: TrainingResult,
    rows: LabelledRows,
    validation: LabelledRows,
    pool: tuple[str, ...],
    salt: str,
    rule: AnswerRule | None,
) -> StackedVote | None:
    """The stacked vote; None if the rows have no answers, or no rule that compares their texts.

    KNN and MLP are trained again on each fold of the training rows. RouterDC is too expensive for
    that, and plug-ins are not trained here: their vote is fitted on the validation rows.
    """
    folds = choice.kind in CROSS_FITTED
    used = rows if folds else validation
    if not used.rows or rule is None:
        return None

    def fit_fold(batch: Batch, labels: BoolArray) -> Router:
        if folds:
            return fit_embedded(choice, batch.encoded.embeddings, labels)
        return fitted.router

    return stack(
        pool,
        tuple(fingerprint(salt, query) for query in used.queries),
        Batch(used.queries, fitted.encoder),
        used.labels(pool),
        RowAnswers.of(used.rows, pool, rule),
        fit_fold,
        rows_units(used),
    )


# Training log beside the artifact: ``training.json`` and, with matplotlib, a loss curve.


def write_log(folder: Path, losses: Sequence[float], settings: Mapping[str, Any]) -> None:
    """Write ``training.json``, and ``loss.png`` where matplotlib is installed.

    Args:
        folder: The artifact's.
        losses: One a step, or one an epoch; none of a router without such a training.
        settings: JSON values: kind of router, seed and other settings.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    log = {**settings, "steps": len(losses), "losses": list(losses)}
    try:
        text = json.dumps(log, indent=2, ensure_ascii=False) + "\n"
        (folder / "training.json").write_text(text, encoding="utf-8")
        if losses:
            _draw(folder / "loss.png", losses)
    except OSError as exc:
        raise ArtifactError(f"the log in {folder} cannot be written: {exc.strerror}") from exc


def _draw(path: Path, losses: Sequence[float]) -> None:
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError:  # an optional extra
        return
    figure = figures.Figure(figsize=(6, 4), layout="constrained")  # no pyplot, hence no display
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    figure.savefig(path, dpi=120)
