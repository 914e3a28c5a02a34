"""Evaluation of `racer evaluate`: parses its arguments and runs the protocol. Prints nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from app.settings.candidates import CandidatePrice
from app.tools.answer_rules import answer_rule
from app.tools.hub_probe import check_hub
from racer_core.aggregation.rule import AnswerRule
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.encoder.base import Encoder
from racer_core.encoder.hybrid import HybridEncoder
from racer_core.errors import InputError, RowsError
from racer_core.offline.conversations import (
    ConversationEvaluation,
    conversation_rows,
    evaluate_conversations,
)
from racer_core.offline.embeddings import CachedEncoder, default_cache
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import AVERAGE, MERGED, Evaluation
from racer_core.offline.fit import RouterChoice
from racer_core.offline.protocol import Order, Protocol, Shares
from racer_core.offline.report import check_report, write_report
from racer_core.offline.reporting import Progress
from racer_core.offline.score_matrix import read_scores
from racer_core.offline.sources import FixedSource, RouterSource, trained_source
from racer_core.offline.table import build_table
from racer_core.offline.train import EncoderChoice
from racer_core.prices import Price, expected_prices
from racer_core.racer import Racer
from racer_core.records.conversation import RoutedText
from racer_core.records.reader import read_rows
from racer_core.records.row import MAX_QUERY_CHARS
from racer_core.records.usage import mean_usage
from racer_core.routers import registry
from racer_core.types import LabelledRows, RiskTarget, RowsKind, Score

OFF = "off"
ALL = "all"  # in --share: every benchmark without a share of its own
_SUFFIXES = (".gz", ".jsonl", ".ndjson", ".json", ".csv", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationArguments:
    """Options of the command; ``protocol`` is without shares and prices, which need names."""

    data: tuple[str, ...]
    encoder: EncoderChoice
    router: str  # a built-in one, or one of an installed package
    router_options: Mapping[str, Any]
    artifact: Path | None  # a trained router instead
    scores: Path | None  # a matrix of scores instead
    protocol: Protocol
    shares: tuple[str, ...]
    prices: tuple[str, ...]
    kind: RowsKind | None = None  # of the rows of all benchmarks; None: guessed for each
    cache: str | None
    report: Path | None
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationInputs:
    """Validated inputs: rows, base router, and the complete protocol."""

    arguments: EvaluationArguments
    rows: Mapping[str, LabelledRows]
    protocol: Protocol
    source: RouterSource
    rule: AnswerRule


def prepare(arguments: EvaluationArguments) -> EvaluationInputs:
    """Validate the arguments, read the rows and open the router with its encoder.

    Raises:
        InputError: An argument is invalid, or the report cannot be written.
        RowsError: Rows are wrong.
        ArtifactError: The encoder, the artifact or a router of a package cannot be opened.
    """
    files = benchmark_files(arguments.data)
    protocol = with_shares(arguments.protocol, arguments.shares, files)
    if arguments.report is not None:
        check_report(arguments.report)
    rows = {
        name: read_rows(file, max_query_chars=MAX_QUERY_CHARS, kind=arguments.kind)
        for name, file in files.items()
    }
    source = open_source(arguments, rows)
    return EvaluationInputs(
        arguments=arguments,
        rows=rows,
        protocol=with_prices(protocol, arguments.prices, rows),
        source=source,
        rule=answer_rule(protocol.equality, encoder=source.encoder),
    )


def open_source(arguments: EvaluationArguments, rows: Mapping[str, LabelledRows]) -> RouterSource:
    """The base router that the arguments name.

    Raises:
        InputError: Two routers, several divisions of a router that no row trains, or wrong scores.
        ArtifactError: The encoder, the artifact or a router of a package cannot be opened.
    """
    if arguments.artifact is not None:
        if arguments.protocol.divisions > 1:
            raise InputError("--divisions draws training rows anew, and an artifact takes none")
        opened = Racer.load(arguments.artifact)
        return FixedSource(
            f"{opened.artifact.router.kind} of {arguments.artifact}",
            opened.artifact.router,
            with_cache(opened.encoder, arguments.cache),
            opened.artifact,
        )
    pool = next(iter(rows.values())).pool
    if arguments.scores is not None:
        queries = [query for each in rows.values() for query in each.queries]
        matrix = read_scores(arguments.scores, pool, queries)
        return FixedSource(f"scores of {arguments.scores}", matrix)
    check_hub(arguments.encoder.name)
    encoder = with_cache(arguments.encoder.open(), arguments.cache)
    if arguments.router not in registry.BUILT_IN:
        custom = registry.create(arguments.router, pool, arguments.router_options)
        return FixedSource(arguments.router, custom, encoder)
    return trained_source(
        RouterChoice(kind=arguments.router, options=arguments.router_options),
        encoder,
        folder=None if arguments.cache == OFF else default_cache().parent / "routers",
        cached=lambda tuned: with_cache(tuned, arguments.cache),
    )


def measure_conversations(
    data: str,
    artifact: Path,
    *,
    text: RoutedText,
    alphas: Sequence[float],
    scores: Sequence[str],
    risk_targets: Sequence[str],
    splits: int,
    seed: int,
) -> ConversationEvaluation:
    """Measure an artifact on whole conversations.

    Args:
        data: The file of their turns.
        artifact: The trained router.
        text: What it reads of a turn.
        alphas: Risk levels.
        scores: One nonconformity score; none: ``cover``.
        risk_targets: One risk target; none: ``answerable``.
        splits: Number of random halves.
        seed: Of the splits.

    Raises:
        InputError: Several scores or targets, or rows that are no whole conversations.
    """
    if len(scores) > 1 or len(risk_targets) > 1:
        raise InputError("--conversations is measured for one --score and one --risk-target")
    racer = Racer.load(artifact)
    options = CalibrationOptions(
        score=Score(scores[0]) if scores else Score.COVER,
        risk_target=RiskTarget(risk_targets[0]) if risk_targets else RiskTarget.ANSWERABLE,
        null_threshold=racer.artifact.null_threshold,
        smoothing_salt=SMOOTHING_SALT,
    )
    [path] = benchmark_files([data]).values()
    turns = conversation_rows(racer, read_rows(path, text=text), options, text=text)
    return evaluate_conversations(turns, alphas=alphas, splits=splits, seed=seed)


def measure(prepared: EvaluationInputs, progress: Progress) -> Evaluation:
    """Embed, split, train and measure; write the report if one is requested."""
    arguments, source = prepared.arguments, prepared.source
    tables = [
        build_table(
            prepared.rows,
            router=source,
            protocol=prepared.protocol,
            rule=prepared.rule,
            division=division,
            progress=progress,
        )
        for division in range(prepared.protocol.divisions)
    ]
    spec = source.spec
    result = evaluate(
        *tables,
        encoder="none" if spec is None else spec.name + (" + char n-grams" if spec.lexical else ""),
        router=source.name,
        dtype=None if spec is None else spec.dtype,
        progress=progress,
    )
    if arguments.report is not None:
        write_report(result, arguments.report, arguments.command)
    return result


def benchmark_files(data: Iterable[str]) -> dict[str, Path]:
    """Map benchmark names to files: NAME=FILE, or FILE, named without its suffixes.

    Raises:
        InputError: Two benchmarks have one name, or a name is reserved in reports.
    """
    files: dict[str, Path] = {}
    for given in data:
        name, file = _benchmark(given)
        if name in files:
            raise InputError(
                f"--data: two files have the name {name!r}; name one of them with NAME=FILE"
            )
        if name in (MERGED, AVERAGE, ALL):
            raise InputError(f"--data: {name!r} is a reserved name; name the file with NAME=FILE")
        files[name] = file
    return files


def with_shares(protocol: Protocol, given: Iterable[str], names: Iterable[str]) -> Protocol:
    """Add the shares of --share to the protocol: NAME=train,calibration,validation.

    Raises:
        InputError: An unknown benchmark, or invalid shares.
    """
    benchmarks, by_name = list(names), dict[str, Shares]()
    for each in given:
        name, numbers = _pair(each, "--share", "NAME=train,calibration,validation")
        if name not in (*benchmarks, ALL):
            raise InputError(f"--share: {name!r} is none of {', '.join(benchmarks)}, or {ALL}")
        train, calibration, validation = _three_shares(numbers, each)
        by_name[name] = Shares(train=train, calibration=calibration, validation=validation)
    default = by_name.pop(ALL, protocol.shares)
    return replace(protocol, shares=default, shares_of=by_name)


def with_prices(
    protocol: Protocol, given: Iterable[str], rows: Mapping[str, LabelledRows]
) -> Protocol:
    """Add the expected price of a call to the protocol: one for every candidate, or none at all.

    Args:
        protocol: The protocol.
        given: The values of --price.
        rows: The rows by benchmark, whose recorded calls say what calls use.

    Raises:
        InputError: An unknown candidate, a candidate without a price, or an invalid price.
        RowsError: A price depends on what calls use, and no row records that.
    """
    pool = next(iter(rows.values())).pool
    prices: dict[str, Price] = {}
    for each in given:
        name, price = _pair(each, "--price", "CANDIDATE=PRICE")
        if name not in pool:
            raise InputError(f"--price: {name!r} is none of {', '.join(pool)}")
        prices[name] = _price(price, each)
    if not prices:
        if Score.COVER_COST in protocol.scores:
            raise InputError("--score cover_cost needs a --price for every candidate")
        return protocol
    if missing := [name for name in pool if name not in prices]:
        raise InputError(
            f"--price: {missing[0]!r} has no price; give a price to all candidates or to none"
        )
    expected = expected_prices(prices, mean_usage(row for each in rows.values() for row in each))
    unknown = [name for name in pool if expected[name] is None]
    if unknown:
        raise RowsError(
            "--data",
            [
                f"no row records what calls of {unknown[0]!r} used, on which its price depends: "
                "take rows of `racer label`, or give the price of a call as a number"
            ],
        )
    return replace(protocol, prices=tuple(expected[name] or 0.0 for name in pool))


def with_cache(encoder: Encoder, cache: str | None) -> Encoder:
    """Put a file cache of embeddings before the encoder.

    Args:
        encoder: Computes what the cache lacks.
        cache: The file; ``off`` for no cache; None for the default file of this user.
    """
    if isinstance(encoder, HybridEncoder):
        return HybridEncoder(with_cache(encoder.semantic, cache))
    # Others than transformers embed faster than a file is read.
    transforms = encoder.spec.kind in ("huggingface", "onnx")
    if cache == OFF or (cache is None and not transforms):
        return encoder
    return CachedEncoder(encoder, default_cache() if cache is None else Path(cache))


def false_abstain_budget(given: str) -> float | None:
    """Parse a share; ``off`` gives None. Raises InputError."""
    if given == OFF:
        return None
    budget = _number(given, f"--false-abstain-budget {given}")
    if not 0.0 <= budget <= 1.0:
        raise InputError(f"--false-abstain-budget {given} must be a share from 0 to 1, or {OFF}")
    return budget


def _benchmark(given: str) -> tuple[str, Path]:
    name, _, file = given.partition("=")
    if name and file and not Path(given).exists():
        return name, Path(file)
    path = Path(given)
    while path.suffix.lower() in _SUFFIXES:
        path = path.with_suffix("")
    return path.name or given, Path(given)


def _pair(given: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = given.rpartition("=")
    if not (name and equals and value):
        raise InputError(f"{option}: {given!r} is not {form}")
    return name, value


def _three_shares(numbers: str, given: str) -> tuple[float, float, float]:
    parts = numbers.split(",")
    if len(parts) != 3:
        raise InputError(f"--share: {given!r} is not NAME=train,calibration,validation")
    train, calibration, validation = (_number(part, given) for part in parts)
    return train, calibration, validation


def _number(text: str, given: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise InputError(f"{given!r}: {text!r} is not a number")
    return number


def _price(text: str, given: str) -> Price:
    """A number, or the fields of `candidates[].price` as a mapping."""
    try:
        return CandidatePrice.model_validate(yaml.safe_load(text)).exact
    except (yaml.YAMLError, ValidationError) as exc:
        raise InputError(
            f"--price: {given!r}: give the price of a call, a number above 0, or such as "
            "CANDIDATE='{input: 0.15, output: 0.6}', per million tokens"
        ) from exc


def default_scores(prices: tuple[str, ...]) -> tuple[Order, ...]:
    """The scores of the protocol, and ``cover_cost`` if there are prices."""
    scores = Protocol().scores
    return (*scores, Score.COVER_COST) if prices else scores
