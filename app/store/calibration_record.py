"""Record of a stored calibration, and its encoding: a JSON document and arrays."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from app.settings import DEFAULT
from racer_core.calibration.answer_limit import AnswerLimit
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.certificate import CoreReason
from racer_core.calibration.kept_order import TokenPrices
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.records.conversation import RoutedText
from racer_core.records.row import MAX_QUERY_CHARS
from racer_core.types import RowsKind

NO_APPLICATION: Final = ""  # as a key of risk levels; never the name of an application
_BY_APPLICATION: Final = "application"  # ``Settings.grouping`` begins with it

# Arrays that some calibrations lack.
_OPTIONAL: Final = (
    "neighbours", "projections", "quality", "weights", "unlabelled", "judged", "conversations",
    "turn_sizes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnAlpha:
    """The risk levels of an application when its rows were uploaded.

    Attributes:
        alpha: The one of the upload: stated with it, or configured.
        fixed: The one that was fixed before the rows were first shown; None: none was.
        levels: All that were declared before, to which the configuration may change.
    """

    alpha: float
    fixed: float | None
    levels: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Labelled rows of one kind of request: only they set the threshold of such requests.

    Attributes:
        calibration: The rows. Patterns, risk target, alpha, r and score are the same in all
            populations of a record; ``delta`` and what the options say of the rows need not be.
        conditions: Digests of what the candidates were sent for the rows, but for the query, in the
            order of the calibration's pool. Of drawn rows: digests of what the gateway added.
        later: They are turns after the first of a conversation, or whole conversations.
        text: What the router read of later turns, but of applications with a text of their own.
        query_chars: How many characters of a row's text the router read at most.
        drawn: The application whose traffic the rows were drawn from, as whole requests; None:
            requests must be sent like the rows.
        together: They are first and later turns of conversations, which have one threshold.
        conversations: They are whole conversations, whose mean risk the threshold bounds.
        scored_by: What decided their scores beside the artifact: ``Artifact.inputs``.
        void_reasons: Premises that never held for these rows, beside those of the record.
    """

    calibration: Calibration
    conditions: tuple[str, ...] = ()
    later: bool = False
    text: RoutedText = "last_user"
    query_chars: int = MAX_QUERY_CHARS
    drawn: str | None = None
    together: bool = False
    conversations: bool = False
    scored_by: Mapping[str, str] = field(default_factory=dict[str, str])
    void_reasons: tuple[str, ...] = ()

    def is_too_long(self, text_chars: int, query_chars: int) -> bool:
        """Whether a text is not read as it would be of a row.

        Args:
            text_chars: Its characters.
            query_chars: How many the router reads now.
        """
        if self.query_chars == query_chars:
            return False
        return text_chars > min(query_chars, self.query_chars)

    def is_enough(self, alphas: Mapping[str, OwnAlpha]) -> bool:
        """Whether the rows are enough for the largest configured alpha of their groups.

        Args:
            alphas: Those that were configured when the rows were uploaded.
        """
        usual = self.calibration.options.alpha
        of_none = alphas.get(NO_APPLICATION)
        own = (alphas.get(each or NO_APPLICATION, of_none) for each in self.calibration.group_names)
        return self.calibration.is_enough(
            max(usual if each is None else each.alpha for each in own)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """A stored calibration: everything needed to recompute any threshold.

    Attributes:
        id: Its name.
        created_at: UTC, ISO 8601.
        artifact: Digest of the artifact that scored the rows and of how candidates are served.
        populations: The rows by kind; the first are of first turns, and the most.
        evidence: What is known of the thresholds.
        void_reasons: Premises that never held, such as ``training_overlap``.
        grouped_by: ``Settings.grouping`` of its groups.
        alphas: The risk levels that were stated or configured when the rows were uploaded, by
            application; ``NO_APPLICATION``: of requests of none.
    """

    id: str
    created_at: str
    artifact: str
    populations: tuple[Population, ...]
    evidence: dict[str, Any]
    void_reasons: tuple[str, ...] = ()
    grouped_by: str = "request"
    alphas: Mapping[str, OwnAlpha] = field(default_factory=dict[str, OwnAlpha])

    def chosen(self) -> Self:
        """The record after its figures had a part in its activation: its certificates are void."""
        reasons = (*self.void_reasons, CoreReason.CHOSEN_BY_FIGURES)
        return replace(self, void_reasons=tuple(dict.fromkeys(reasons)))

    @property
    def is_chosen(self) -> bool:
        """Whether its figures had a part in its activation."""
        return CoreReason.CHOSEN_BY_FIGURES in self.void_reasons

    def options(self, group: str | None, alpha: float, population: int = 0) -> CalibrationOptions:
        """The terms of a group at the risk level that is served.

        Alpha itself bounds the risk of the one level that was fixed before the rows were shown.

        Args:
            group: The group.
            alpha: Its configured risk level.
            population: The place of the rows that decide.
        """
        own, options = self.own_alpha(group), self.populations[population].calibration.options
        if own is None:  # of a version that served the calibration's own alpha
            is_fixed = options.is_alpha_fixed and alpha == options.alpha
            return replace(options, alpha=alpha, is_alpha_fixed=is_fixed)
        is_fixed = alpha == own.fixed
        return replace(options, alpha=alpha, is_alpha_fixed=is_fixed, levels=own.levels)

    def own_alpha(self, group: str | None) -> OwnAlpha | None:
        """The level of a group's upload; None: a version of before did not store it."""
        own = self.alphas.get(group or NO_APPLICATION)
        return self.alphas.get(NO_APPLICATION) if own is None else own

    def is_grouped_by(self, group_by: str) -> bool:
        """Whether requests grouped by this setting belong to the groups of the rows.

        Rows without groups are of one population, whatever groups requests have. Applications are
        declared as populations that differ, so their rows must name them.
        """
        is_one_population = not self.has_groups and not group_by.startswith(_BY_APPLICATION)
        return self.grouped_by == group_by or is_one_population

    @property
    def is_by_application(self) -> bool:
        """Whether its groups are applications, so that every row and every request has one."""
        return self.grouped_by.startswith(_BY_APPLICATION)

    @property
    def has_groups(self) -> bool:
        """Whether some row has a group; rows without one are then no rows of any group."""
        return any(each.calibration.groups is not None for each in self.populations)

    @property
    def counts_repeats(self) -> bool:
        """Whether the rows are a sample of traffic: then every arrival is drawn like a row.

        Else the arrivals that are drawn like the rows are the queries that are new.
        """
        found = [self.evidence, *self.evidence.get("uploads", {}).values()]
        return all(each.get("sample", {}).get("kind") == RowsKind.TRAFFIC for each in found)

    def counts_repeats_of(self, application: str) -> bool:
        """As ``counts_repeats``, of the rows of an application, which an upload may have replaced.

        Args:
            application: The application; empty where the record has none.
        """
        upload = self.evidence.get("uploads", {}).get(application, self.evidence)
        return upload.get("sample", {}).get("kind") == RowsKind.TRAFFIC

    def turns_of(self, group: str | None) -> int | None:
        """How many turns of a conversation the sampled rows of a group stand for; None: any.

        Args:
            group: The group; with applications, the application.
        """
        upload = self.evidence.get("uploads", {}).get(group or "", self.evidence)
        name = (group or DEFAULT) if self.is_by_application else None
        for each in upload.get("source", {}).get("sampling", ()):
            if each["application"] == name:
                return each["turns"]
        return None

    def least_similarity_of(self, group: str | None) -> float | None:
        """The cosine with the nearest training row below which a query is unlike the rows.

        Args:
            group: The request's group; with applications, the application.

        Returns:
            None: it is not known, and no query is.
        """
        upload = self.evidence.get("uploads", {}).get(group or "", self.evidence)
        return upload.get("least_similarity")

    def ids_of(self, application: str) -> tuple[str, ...]:
        """The calibrations with the same rows of an application, oldest first, this one last.

        Args:
            application: The application; empty where the record has none.
        """
        return (*self.evidence.get("replaced", {}).get("earlier", {}).get(application, ()), self.id)

    @property
    def calibration(self) -> Calibration:
        """The rows of the first population."""
        return self.populations[0].calibration

    def has_query(self, fingerprint: bytes, population: int, *, later: bool) -> bool:
        """Whether a query is a row of a population, by its place, and of its turn."""
        rows = self.populations[population]
        is_of_turn = rows.later is later or rows.conversations
        return is_of_turn and fingerprint in rows.calibration.queries

    def encoded(self) -> tuple[str, bytes]:
        """The document, and the arrays as npz."""
        calibration = self.calibration
        document: dict[str, Any] = {
            "pool": calibration.pool,
            "options": _options_document(calibration.options),
            "evidence": self.evidence,
            "void_reasons": self.void_reasons,
            "prices": calibration.prices,
            "groups": calibration.groups,
            "answer_limit": calibration.answer_limit and asdict(calibration.answer_limit),
            "grouped_by": self.grouped_by,
            "alphas": {name: astuple(each) for name, each in self.alphas.items()},
            "patterns": _pattern_settings(calibration.patterns),
            "populations": [_population_settings(each) for each in self.populations],
        }
        arrays = _arrays_of(calibration)
        if calibration.patterns is not None:
            arrays["patterns"] = calibration.patterns.patterns
            arrays["pattern_frequencies"] = calibration.patterns.frequencies
        for place, population in enumerate(self.populations[1:], 1):
            others = _arrays_of(population.calibration)
            arrays |= {f"{place}_{name}": array for name, array in others.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return json.dumps(document), buffer.getvalue()

    @classmethod
    def decoded(
        cls, record_id: str, created_at: str, artifact: str, document: str, arrays: bytes
    ) -> Self:
        """Decode the result of :meth:`encoded`; invalid input raises many kinds of errors."""
        fields = json.loads(document)
        stored: Mapping[str, NDArray[Any]] = np.load(io.BytesIO(arrays), allow_pickle=False)
        calibration = _calibration(fields, stored)
        return cls(
            id=record_id,
            created_at=created_at,
            artifact=artifact,
            populations=tuple(_populations(fields, calibration, stored)),
            evidence=fields["evidence"],
            void_reasons=tuple(fields["void_reasons"]),
            grouped_by=fields["grouped_by"],
            alphas={name: _own_alpha(*each) for name, each in fields["alphas"].items()},
        )


def _own_alpha(alpha: float, fixed: float | bool | None, levels: Sequence[float] = ()) -> OwnAlpha:
    """A stored one; before 0.2.0 was released it said whether alpha was fixed."""
    if isinstance(fixed, bool):
        fixed = alpha if fixed else None
    return OwnAlpha(alpha, fixed, tuple(levels))


def _populations(
    fields: Mapping[str, Any], first: Calibration, arrays: Mapping[str, NDArray[Any]]
) -> Iterator[Population]:
    """The stored populations; ``first`` is the calibration of the first one."""
    for place, settings in enumerate(fields["populations"]):
        groups = settings["groups"]
        prices = settings["prices"]
        of_tokens: list[TokenPrices] | None = settings["token_prices"]
        yield Population(
            calibration=first
            if place == 0
            else replace(
                first,
                **_rows_from(arrays, f"{place}_"),
                groups=groups and tuple(groups),
                answer_limit=None,
                options=_options(settings["options"]),
                prices=prices and tuple(prices),
                token_prices=of_tokens and tuple((a, b, c) for a, b, c in of_tokens),
            ),
            conditions=tuple(settings["conditions"]),
            later=settings["later"],
            text=settings["text"],
            query_chars=settings["query_chars"],
            drawn=settings["drawn"],
            together=settings["together"],
            conversations=settings["conversations"],
            scored_by=settings["scored_by"],
            void_reasons=tuple(settings["void_reasons"]),
        )


def _population_settings(population: Population) -> dict[str, Any]:
    return {
        "conditions": population.conditions,
        "later": population.later,
        "text": population.text,
        "query_chars": population.query_chars,
        "drawn": population.drawn,
        "together": population.together,
        "conversations": population.conversations,
        "scored_by": population.scored_by,
        "groups": population.calibration.groups,
        "options": _options_document(population.calibration.options),
        "prices": population.calibration.prices,
        "token_prices": population.calibration.token_prices,
        "void_reasons": population.void_reasons,
    }


def _options_document(options: CalibrationOptions) -> dict[str, Any]:
    salt = options.smoothing_salt
    return asdict(options) | {"smoothing_salt": salt and salt.hex()}


def _options(document: Mapping[str, Any]) -> CalibrationOptions:
    salt = document["smoothing_salt"]
    fields: dict[str, Any] = {**document, "smoothing_salt": bytes.fromhex(salt) if salt else None}
    return CalibrationOptions(**fields)


def _arrays_of(calibration: Calibration) -> dict[str, NDArray[Any]]:
    prints = np.frombuffer(b"".join(calibration.fingerprints), np.uint8)
    arrays: dict[str, NDArray[Any]] = {
        "scores": calibration.scores,
        "labels": calibration.labels,
        "fingerprints": prints.reshape(len(calibration.fingerprints), -1),
    }
    for name in _OPTIONAL:
        array = getattr(calibration, name)
        if array is not None:
            arrays[name] = array
    return arrays


def _rows_from(arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> dict[str, Any]:
    return {
        "scores": arrays[prefix + "scores"],
        "labels": arrays[prefix + "labels"],
        "fingerprints": tuple(each.tobytes() for each in arrays[prefix + "fingerprints"]),
        **{name: arrays.get(prefix + name) for name in _OPTIONAL},
    }


def _pattern_settings(patterns: PatternModel | None) -> dict[str, float] | None:
    if patterns is None:
        return None
    return {
        "neighbours": patterns.neighbours,
        "prior": patterns.prior,
        "temperature": patterns.temperature,
    }


def _calibration(fields: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Calibration:
    settings, prices, groups = fields["patterns"], fields["prices"], fields["groups"]
    patterns = settings and PatternModel(
        patterns=arrays["patterns"], frequencies=arrays["pattern_frequencies"], **settings
    )
    return Calibration(
        pool=tuple(fields["pool"]),
        options=_options(fields["options"]),
        patterns=patterns,
        prices=prices and tuple(prices),
        groups=groups and tuple(groups),
        answer_limit=_answer_limit(fields["answer_limit"]),
        **_rows_from(arrays),
    )


def _answer_limit(fields: Mapping[str, Any] | None) -> AnswerLimit | None:
    if fields is None:
        return None
    return AnswerLimit(
        answer_risk_max=fields["answer_risk_max"],
        delta=fields["delta"],
        thresholds=tuple(fields["thresholds"]),
        vote=fields["vote"],
    )
