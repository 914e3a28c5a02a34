"""Calibration options: the terms of the guarantee that a calibration is computed for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from racer_core.errors import CalibrationError
from racer_core.types import BINARY_TARGETS, RiskTarget, Score, checked_alpha, enum_member

# The key of all that is served and compared. Fingerprints are keyed hashes themselves; one key for
# all calibrations leaves no draw that could be repeated until a threshold pleases.
SMOOTHING_SALT: Final = b"ties"

# Of one calibration: the bound of eight is still below the band over all (docs/method.md), and the
# share of each is above what ties take (``realised_risk.TIE_LEVEL``).
MAX_LEVELS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """The terms of the guarantee; ``alpha`` and ``score`` may differ per request."""

    alpha: float = 0.1
    score: Score = Score.GAP
    risk_target: RiskTarget = RiskTarget.ANSWERABLE
    delta: float | None = None  # None: mean over calibration sets; else exact binomial rule
    r: int = 1  # right candidates wanted in the set
    null_threshold: float | None = None  # tau: abstain when p_null >= tau (``answerable`` only)
    # The rows are one of each cluster, so alpha bounds the risk of a request of a random cluster.
    one_per_cluster: bool = False
    # Alpha and the other terms did not depend on the rows; else only the band bounds the risk.
    is_alpha_fixed: bool = True
    # Levels declared before the rows: an alpha picked among them has the bound that holds for all
    # of them together, which is smaller than the band over all levels.
    levels: tuple[float, ...] = ()
    # Key of the noise that breaks ties of scores; None: ties stay, and leave part of alpha unspent.
    smoothing_salt: bytes | None = None
    max_weight: float | None = None  # of any served query; None: the rows have no weights
    # The rows are a list of questions and share clusters: they are not independent.
    has_dependent_rows: bool = False
    # Thresholds follow from a judge's verdicts, corrected by people's labels. The rows set it.
    has_judged_rows: bool = False
    # The rows are all turns of conversations, so alpha bounds the mean risk of a conversation's
    # turns. The rows set it.
    has_conversations: bool = False

    @property
    def weights(self) -> Literal["known"] | None:
        """Where the weights of a calibration's rows come from; None: rows have none."""
        return None if self.max_weight is None else "known"

    @property
    def labels(self) -> Literal["judge_corrected"] | None:
        """Where the labels of a calibration's rows come from; None: they are given."""
        return "judge_corrected" if self.has_judged_rows else None

    def __post_init__(self) -> None:
        """Refuse invalid options; turn the names of enum members into members."""
        score = enum_member(Score, self.score, "score", CalibrationError)
        target = enum_member(RiskTarget, self.risk_target, "risk_target", CalibrationError)
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "risk_target", target)
        checked_alpha(self.alpha)
        levels = sorted({checked_alpha(each, "levels") for each in self.levels})
        object.__setattr__(self, "levels", tuple(levels))
        if len(levels) > MAX_LEVELS:
            raise CalibrationError(f"levels: at most {MAX_LEVELS} can be declared")
        if self.delta is not None:
            checked_alpha(self.delta, "delta")
        if self.r < 1:
            raise CalibrationError("r must be at least 1")
        if self.r > 1 and target == RiskTarget.QUALITY:
            raise CalibrationError("r counts right candidates, and risk_target quality has none")
        if self.max_weight is not None and not 0.0 < self.max_weight < math.inf:
            raise CalibrationError("max_weight must be above 0 and finite")

    @property
    def unit(self) -> str:
        """What the guarantee draws at random: a ``request``, or a ``cluster`` with one of its own.

        A bound for requests of random clusters is none for random requests, which are mostly those
        of large clusters. Of a random ``conversation`` the mean over all its turns is bounded.
        """
        if self.has_conversations:
            return "conversation"
        return "cluster" if self.one_per_cluster else "request"

    @property
    def law(self) -> Literal["beta", "tail", "expectation"]:
        """What is known of the risk, given the rows.

        ``beta``: its law, since the threshold is an order statistic. ``tail``: that it exceeds
        alpha with a probability of at most ``delta``. ``expectation``: its mean over calibration
        sets is at most alpha, and nothing of one set.
        """
        is_plain = self.weights is None and not (self.has_judged_rows or self.has_conversations)
        if is_plain and self.risk_target in BINARY_TARGETS:
            return "beta"
        return "expectation" if self.delta is None else "tail"
