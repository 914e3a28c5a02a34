"""Record builder: from the rows of an upload to a calibration record with its evidence."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from app.calibrations.answer_risk import answer_risk, limit_answers
from app.calibrations.columns import RowColumns
from app.calibrations.evidence import (
    application_evidence,
    conditions_evidence,
    conversation_evidence,
    curve,
    evidence,
    groups,
    later_evidence,
)
from app.calibrations.jobs import Progress
from app.calibrations.parsing import check_reachable
from app.calibrations.row_kinds import RowKind, RowKinds, is_of_same_kind, used_kinds, with_clusters
from app.calibrations.seen_rows import Terms, level_terms, limit_terms
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.routing.reasons import Reason
from app.routing.scorer import RouterBackend
from app.settings import DEFAULT, Settings
from app.store import now
from app.store.calibration_record import (
    NO_APPLICATION,
    CalibrationRecord,
    OwnAlpha,
    Population,
)
from app.wire.schemas import CalibrateOptions
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.kept_order import TokenPrices
from racer_core.calibration.options import MAX_LEVELS, SMOOTHING_SALT, CalibrationOptions
from racer_core.calibration.threshold import fewest_rows
from racer_core.errors import CalibrationError, InputError
from racer_core.racer import ONE_PER_CLUSTER_NEEDS_KIND
from racer_core.records.near_copies import count_near_copies
from racer_core.records.unlike import least_similarity
from racer_core.trained_router import (
    LabelledColumns,
    RouterScores,
    Scorer,
    TrainedRouter,
    refuse_uncounted,
)
from racer_core.types import BoolArray, FloatArray, RowsKind, Score


class RecordBuilder:
    """Builds records for one router.

    Args:
        settings: The configuration.
        trained: The router.
        scorer: Scores rows.
        grouping: Finds the group of a row as of a request.
        conditions: Finds what candidates are sent, but for the query.
        setup: Digest of the artifact and of how its candidates are served.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        trained: TrainedRouter,
        scorer: RouterBackend,
        grouping: Grouping,
        conditions: ConditionReader,
        setup: str,
    ) -> None:
        self._settings = settings
        self._trained = trained
        self._scorer = scorer
        prices = settings.exact_prices
        self._token_prices = [prices[name].of_tokens for name in trained.pool if name in prices]
        self._kinds = RowKinds(settings, trained, grouping, conditions)
        self._setup = setup

    def record(
        self,
        rows: RowColumns,
        options: CalibrateOptions,
        source: dict[str, Any],
        progress: Progress,
        fixed: Sequence[Terms],
        stated: float | None = None,
    ) -> CalibrationRecord:
        """A record that is not stored yet. Blocks.

        Args:
            rows: The upload's rows.
            options: The upload's options.
            source: Where the rows come from, for the evidence.
            progress: Takes how far it is.
            fixed: The terms that did not depend on the rows.
            stated: The alpha that the upload itself gives; None: none.

        Raises:
            CalibrationError: The rows cannot be calibrated on.
            JobCancelled: The job was cancelled.
        """
        guarantee = self.guarantee(options)
        alphas = {
            name: self._own_alpha(name, alpha, guarantee, fixed)
            for name, alpha in self._own_alphas(stated)
        }
        is_limit_picked = (
            options.answer_risk_max is not None
            and limit_terms(guarantee, options.answer_risk_max) not in fixed
        )
        own = self._own_alpha(NO_APPLICATION, guarantee.alpha, guarantee, fixed)
        is_fixed = own.fixed == guarantee.alpha
        guarantee = replace(guarantee, is_alpha_fixed=is_fixed, levels=own.levels)
        rows_kind = options.rows_kind or rows.guessed_kind
        terms = partial(with_clusters, guarantee, kind=rows_kind)
        prices = self._call_prices(rows, guarantee)
        first, *others = self._calibrating_rows(rows, guarantee, options)
        either = self._trained.artifact.either_print
        prints = tuple(map(either, rows.fingerprints, rows.overlap_prints))
        if not options.allow_overlap:
            self._trained.refuse_overlap(prints, options.rows_kind)
        built = self._build(first, terms(first), prices, progress)
        refuse_uncounted(built.calibration)
        largest = max([guarantee.alpha, *(each.alpha for each in alphas.values())])
        used = list(used_kinds(others, first, fewest_rows(largest, guarantee.delta)))
        built_others = [self._build(each, terms(each), prices, progress) for each in used]
        rows_of_first, limit = first.rows, None
        if options.answer_risk_max is not None:
            _check_limit(options.answer_risk_max, is_picked=is_limit_picked, is_one_kind=not used)
            rows_of_first, calibration, limit = limit_answers(
                first.rows,
                built.calibration,
                self._settings.aggregation,
                self._trained.artifact.stacked,
                options.answer_risk_max,
            )
            built = replace(built, calibration=calibration)
        populations = [
            self._population(kind, each.calibration)
            for kind, each in zip(used, built_others, strict=True)
        ]
        progress("thresholds")
        overlap = len(self._trained.overlap(prints))
        is_fresh = self._trained.is_fresh_traffic(prints, options.rows_kind)
        overlap_voids = overlap > 0 and not is_fresh
        found = self._evidence(rows_of_first, built, dry_run=options.dry_run)
        found |= {
            "source": source,
            "overlap": overlap,
            "overlap_voids": overlap_voids,
            "sample": _sample_evidence(rows, options, built.calibration.options.unit),
        }
        if prices is not None:
            usage = {name: asdict(each) for name, each in rows.usage.items()}
            currency = self._settings.currency
            found["prices"] = {"currency": currency, "of_calls": prices, "usage": usage}
        if limit is not None:
            found["answer_limit"] = limit
        whole = [each for each in populations if each.conversations]
        parts = [each for each in populations if not each.conversations]
        found["conditions"] = conditions_evidence(rows, first.conditions, parts)
        for each in parts:
            if each.later and is_of_same_kind(each, first):
                found["later_turns"] = later_evidence(each.calibration)
        if whole:
            found["conversations"] = [conversation_evidence(each.calibration) for each in whole]
        if self._settings.applications:
            everything = [Population(calibration=built.calibration), *parts]
            found["applications"] = application_evidence(everything, alphas)
        if left_out := self._settings.leave_outs:
            found["leave_out"] = {name: list(map(asdict, each)) for name, each in left_out.items()}
        void_reasons = [Reason.TRAINING_OVERLAP] if overlap_voids else []
        if any(each.own_scores for each in (built, *built_others)):
            # The serving router might give other scores.
            void_reasons.append(Reason.ROW_SCORES_UNVERIFIED)
        return CalibrationRecord(
            id=f"cal-{secrets.token_hex(8)}",
            created_at=now(),
            artifact=self._setup,
            populations=(
                Population(
                    calibration=built.calibration,
                    conditions=first.conditions,
                    query_chars=self._settings.limits.query_chars,
                    drawn=first.drawn,
                    together=first.is_together,
                    scored_by=self._trained.artifact.inputs,
                ),
                *(each for each in populations if each.is_enough(alphas)),
            ),
            evidence=found,
            void_reasons=tuple(void_reasons),
            grouped_by=self._settings.grouping,
            alphas=alphas,
        )

    def _calibrating_rows(
        self, rows: RowColumns, guarantee: CalibrationOptions, options: CalibrateOptions
    ) -> list[RowKind]:
        """The rows that calibrate, by kind as :class:`RowKinds` orders them.

        Raises:
            InputError: The options do not suit the rows.
            CalibrationError: No row is a first turn.
        """
        rows_kind = options.rows_kind or rows.guessed_kind
        kinds = self._kinds.kinds(rows)
        if guarantee.one_per_cluster and options.rows_kind is None:
            raise InputError(ONE_PER_CLUSTER_NEEDS_KIND, param="one_per_cluster")
        terms = with_clusters(guarantee, kinds[0], kind=rows_kind)
        if options.answer_risk_max is not None and terms.has_dependent_rows:
            raise InputError(
                "answer_risk_max needs independent rows, and these share clusters: set "
                "one_per_cluster, or leave all but one row of each cluster out",
                param="answer_risk_max",
            )
        by_cluster = guarantee.one_per_cluster
        if by_cluster or rows_kind is RowsKind.QUESTIONS:
            kinds = [
                self._kinds.one_per_unit(each, rows_kind, by_cluster=by_cluster) for each in kinds
            ]
        if kinds[0].is_later:
            raise CalibrationError(
                "every row is a turn after the first of a conversation: send the rows of first "
                "turns in the same upload"
            )
        return kinds

    def _population(self, kind: RowKind, calibration: Calibration) -> Population:
        """The rows of a kind beside the first."""
        return Population(
            calibration=calibration,
            conditions=kind.conditions,
            later=kind.is_later or kind.is_whole,
            text=self._settings.text_of(kind.drawn),
            query_chars=self._settings.limits.query_chars,
            drawn=kind.drawn,
            together=kind.is_together,
            conversations=kind.is_whole,
            scored_by=self._trained.artifact.inputs,
        )

    def guarantee(self, options: CalibrateOptions) -> CalibrationOptions:
        """The terms of an upload with these options.

        Raises:
            InputError: Levels outside of (0, 1), or that no upload has enough rows for.
        """
        routing = self._settings.routing
        found = CalibrationOptions(
            alpha=routing.alpha if options.alpha is None else options.alpha,
            delta=options.delta,
            score=options.score or routing.score,
            risk_target=options.risk_target or routing.risk_target,
            r=options.r,
            max_weight=options.max_weight,
            null_threshold=self._trained.artifact.null_threshold,
            one_per_cluster=options.one_per_cluster,
            smoothing_salt=SMOOTHING_SALT,
        )
        check_reachable(found.alpha, found.delta)
        return found

    def fixed_terms(
        self,
        options: CalibrateOptions,
        like: Sequence[CalibrationOptions],
        stated: float | None,
    ) -> list[Terms]:
        """The terms that do not depend on rows that were never shown.

        One level is fixed, so that no figure can choose: the one that the upload states, such as
        `racer bootstrap` after a choice on validation rows, or else the configured one. Declared
        are `routing.levels` and both of them.

        Args:
            options: The upload's options.
            like: Guarantees whose other terms were in force before, too.
            stated: As for :meth:`record`; a dry run states nothing.
        """
        found: list[Terms] = []
        own = [] if options.dry_run else [options]
        stated = None if options.dry_run else stated
        guarantees = [*like, *(self.guarantee(each) for each in (CalibrateOptions(), *own))]
        for name, alpha in self._own_alphas(stated):
            for each in guarantees:
                found.append(level_terms(each, alpha, name))
                configured = self._settings.alpha_of(name)
                levels = {*self._settings.routing.levels, configured, alpha}
                found += [level_terms(each, level, name, is_declared=True) for level in levels]
        if options.answer_risk_max is not None:
            found.append(limit_terms(self.guarantee(options), options.answer_risk_max))
        return list({json.dumps(each): each for each in found}.values())

    def _own_alphas(self, stated: float | None) -> Iterator[tuple[str, float]]:
        """The level of each application, and of requests of none: its own, the stated or usual."""
        applications = self._settings.applications
        named = (DEFAULT, *applications) if applications else ()
        for name in (NO_APPLICATION, *named):
            has_own = name in applications and applications[name].alpha is not None
            usual = self._settings.alpha_of(name)
            yield name, usual if stated is None or has_own else stated

    def _own_alpha(
        self, name: str, alpha: float, guarantee: CalibrationOptions, fixed: Sequence[Terms]
    ) -> OwnAlpha:
        """An application's level, with what was fixed before the rows were shown."""
        terms = level_terms(guarantee, alpha, name)
        declared = level_terms(guarantee, alpha, name, is_declared=True)
        known = [each[0] for each in fixed if each[1:] == terms[1:]]
        levels = sorted(each[0] for each in fixed if each[1:] == declared[1:])
        return OwnAlpha(
            alpha,
            fixed=alpha if alpha in known else next(iter(known), None),
            # Of too many the band is no larger.
            levels=tuple(levels) if len(levels) <= MAX_LEVELS else (),
        )

    def _call_prices(
        self, rows: RowColumns, guarantee: CalibrationOptions
    ) -> dict[str, float] | None:
        """Expected price of a call of each candidate; None without prices, or without usage.

        Raises:
            CalibrationError: The score needs them.
        """
        prices = self._settings.call_prices(rows.usage)
        if prices is None and guarantee.score is Score.COVER_COST and self._settings.exact_prices:
            raise CalibrationError(
                "cover_cost weighs candidates by what a call is expected to cost, and no row "
                "records what calls used: send rows with `calls`, as `racer label` and samples "
                "have them, or let `price` be the number of a call"
            )
        return prices

    def _build(
        self,
        kind: RowKind,
        guarantee: CalibrationOptions,
        prices: Mapping[str, float] | None,
        progress: Progress,
    ) -> BuiltCalibration:
        rows = kind.rows
        progress("scoring", 0, len(rows))
        return build(
            self._trained,
            replace(rows, groups=self._kinds.groups(rows)),
            guarantee,
            scorer=partial(self._scorer.score_rows, progress=partial(progress, "scoring")),
            prices=None if prices is None else [prices[name] for name in self._trained.pool],
            token_prices=self._token_prices if kind.is_whole else None,
            are_conversations=kind.is_whole,
        )

    def _evidence(
        self, rows: RowColumns, built: BuiltCalibration, *, dry_run: bool
    ) -> dict[str, Any]:
        """The evidence; a dry run also shows other choices of alpha and the groups."""
        calibration, stacked = built.calibration, self._trained.artifact.stacked
        found: dict[str, Any] = evidence(calibration) | {
            "duplicates": rows.duplicates,
            "near_duplicates": rows.near_duplicates,
            "training_copies": built.training_copies,
            "least_similarity": built.least_similarity,
            "answer_risk": answer_risk(rows, calibration, self._settings.aggregation, stacked),
        }
        if found["judge"] is not None:
            found["judge"]["name"] = rows.judge
        if dry_run:
            found |= {"curve": curve(calibration), "groups": groups(calibration)}
        return found


def _check_limit(limit: float, *, is_picked: bool, is_one_kind: bool) -> None:
    """Refuse a limit on wrong answers that these rows cannot test."""
    if not is_one_kind:
        raise InputError(
            "answer_risk_max is tested on rows of one kind: send rows of first turns, "
            "labelled under one vector of conditions",
            param="answer_risk_max",
        )
    if is_picked:
        raise CalibrationError(
            f"answer_risk_max {limit:g} or its alpha was chosen after "
            "these rows were seen: test it on other rows"
        )


def _sample_evidence(rows: RowColumns, options: CalibrateOptions, unit: str) -> dict[str, Any]:
    """What the rows were taken for."""
    return {
        "kind": options.rows_kind or rows.guessed_kind,
        "guessed": options.rows_kind is None,
        "clusters": rows.cluster_count,
        "shared_clusters": rows.shared_clusters,
        "unit": unit,
        "later_turns_answered_by": rows.later_turns_answered_by,
    }


# Built calibration: labelled columns, put in the order of the router's pool and calibrated.


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCalibration:
    """A calibration, and where its scores come from."""

    calibration: Calibration
    own_scores: bool  # some rows brought router scores of their own
    training_copies: int | None  # near copies of training rows; None where that is unknown
    least_similarity: float | None  # below it a query is unlike the rows; None: none is


def build(
    trained: TrainedRouter,
    rows: RowColumns,
    options: CalibrationOptions,
    *,
    scorer: Scorer,
    prices: Sequence[float] | None,
    token_prices: Sequence[TokenPrices] | None = None,
    are_conversations: bool = False,
) -> BuiltCalibration:
    """Put the columns in the order of the router's pool, and calibrate. Blocks.

    Does not check whether the rows were training rows.

    Args:
        trained: The router.
        rows: Rows about the router's pool, in any order of candidates.
        options: The guarantee.
        scorer: Scores the rows that brought no scores.
        prices: Price per call of each candidate, in the order of the router's pool.
        token_prices: For each candidate, in the same order, its prices of an input token, of a
            cached input token and of an output token.
        are_conversations: The rows are all turns of conversations, turn by turn.

    Raises:
        CalibrationError: The columns do not fit.
    """
    found: list[FloatArray] = []

    def score(queries: Sequence[str]) -> RouterScores:
        scored = scorer(queries)
        if scored.similarity is not None:
            found.append(scored.similarity)
        return scored

    order = [rows.pool.index(name) for name in trained.pool]
    turns = rows.turns if are_conversations else None
    columns = LabelledColumns(
        queries=rows.queries,
        fingerprints=rows.fingerprints,
        labels=rows.labels[:, order],
        scores=rows.scores[:, order],
        groups=rows.groups,
        quality=None if rows.quality is None else rows.quality[:, order],
        weights=rows.weights,
        unlabelled=rows.unlabelled,
        judged=None if rows.judged is None else rows.judged[:, order],
        conversations=turns and turns.conversations,
        turn_sizes=turns and turns.sizes,
    )
    return BuiltCalibration(
        calibration=trained.calibrate_columns(
            columns, options, scorer=score, prices=prices, token_prices=token_prices
        ),
        own_scores=bool(np.any(_unverified_scores(rows))),
        training_copies=count_near_copies(found[0]) if found else None,
        least_similarity=least_similarity(found[0]) if found else None,
    )


def _unverified_scores(rows: RowColumns) -> BoolArray:
    """Whether a row brings scores that are not known to be the router's, shape (n,)."""
    has_scores = ~np.isnan(rows.scores[:, 0])
    return has_scores if rows.verified is None else has_scores & ~rows.verified
