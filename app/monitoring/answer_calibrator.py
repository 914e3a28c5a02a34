"""Calibration of the promise `same_answer` from sampled traffic: rows, checks, activation.

The oldest quarter of the rows fits the policy, the others calibrate its threshold. A calibration is
activated only if its threshold is finite and spares calls.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import numpy as np

from app.errors import NotFound, StoreError
from app.ids import IdGenerator
from app.monitoring.answer_rows import AnswerRows, answer_rows
from app.routing.answer_calibrations import AnswerCalibrations, RoundsTerms
from app.settings import COMPARABLE, DEFAULT, VOTE, SameAnswer, Settings
from app.store import Store, now
from app.store.answer_calibrations import AnswerCalibrationRecord, AnswerCalibrationStore
from racer_core.errors import InputError
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration

log = logging.getLogger(__name__)

FITTING_SHARE: Final = 0.25
MIN_FITTING: Final = 20  # rows
ALPHAS: Final = (0.01, 0.02, 0.05, 0.1, 0.2)  # of the frontier that the evidence shows
MIN_AGREEMENT: Final = 0.1  # least share of rows with two equal answers
_SALT_BYTES: Final = 16


class AnswerCalibrator:
    """Makes, lists and activates calibrations; every method runs the store's work on its threads.

    Args:
        settings: The applications and their terms.
        store: Where samples and calibrations are.
        key: Key of the draws of the sample.
        setup: Digest of the configuration, by which records are stored.

    Attributes:
        calibrations: The active ones.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        key: bytes,
        setup: str,
    ) -> None:
        self._settings = settings
        self._store = store
        self._records = AnswerCalibrationStore(store)
        self._key = key
        prices = settings.prices
        self.calibrations = AnswerCalibrations(
            self._records,
            setup=setup,
            prices=None if prices is None else dict(zip(settings.pool, prices, strict=True)),
        )
        self._ids = IdGenerator()

    async def catch_up(self) -> None:
        """Follow what is active in the store. Never raises: the active ones stay."""
        try:
            await self._store.run(self.calibrations.catch_up)
        except StoreError as exc:
            log.warning("calibrations of same_answer are not followed now: %s", exc)

    async def calibrate(self, application: str | None, *, dry_run: bool = False) -> dict[str, Any]:
        """Calibrate one application from its sample, and activate the result if it is sound.

        Args:
            application: The application; None where none is configured.
            dry_run: Change nothing.

        Raises:
            NotFound: The application is not configured.
            InputError: Too few rows, or answers that cannot be compared.
            StoreError: The store cannot be used.
        """
        return await self._store.run(self._calibrate, self._checked(application), dry_run)

    async def activate(self, calibration_id: str) -> None:
        """Make a stored calibration decide. Raises NotFound, Conflict, StoreError."""
        await self._store.run(self._activate, calibration_id)

    async def report(self) -> dict[str, Any]:
        """All calibrations, newest first, and the rows that each application has.

        Raises:
            StoreError: The store cannot be used.
        """
        return await self._store.run(self._report)

    # On threads ------------------------------------------------------------------------------

    def _calibrate(self, application: str, dry_run: bool) -> dict[str, Any]:
        terms = self._terms(application)
        rows = self._rows(application)
        total = len(rows.rows)
        fitting = max(MIN_FITTING, int(FITTING_SHARE * total))
        least = fitting + math.ceil(1.0 / terms.alpha - 1e-9) - 1
        if total < least:
            raise InputError(
                f"there are {total} sampled requests with which nothing is wrong, and alpha "
                f"{terms.alpha:g} takes {least}, {fitting} of which fit the order of calls: wait "
                "for more, or raise `watching.shadow_rate` or alpha",
                param="rows",
            )
        pool = self._settings.pool
        record = AnswerCalibrationRecord(
            id=f"answers-{self._ids.new_id()}",
            created_at=now(),
            answer_setup=self.calibrations.setup,
            application=application,
            fitting=rows.classes(pool, 0, fitting),
            rows=rows.classes(pool, fitting, None),
            lost=rows.lost(fitting),
            salt=secrets.token_bytes(_SALT_BYTES),
            alpha=terms.alpha,
            evidence={},
        )
        if not len(record.fitting) or not len(record.rows):
            raise InputError(
                "hardly any sampled request was answered by all candidates: look for candidates "
                "that are down",
                param="rows",
            )
        wanted = RoundsTerms(terms.reference, terms.max_rounds)
        found = self.calibrations.plan(record, pool, wanted, terms.alpha).calibration
        evidence = self._evidence(terms, found) | {
            "rows": total,
            "fitting": fitting,
            "n": found.n,
            "lost": record.lost,
            "pending": rows.pending,
            "thinned": rows.thinned,
            "since": rows.rows[0].created_at,
            "until": rows.rows[-1].created_at,
        }
        refusal = self._refusal(terms, found, evidence)
        record = replace(record, evidence=evidence)
        if not dry_run:
            self._records.add(record, activate=refusal is None)
            self.calibrations.catch_up()
        return {
            "id": record.id,
            "active": not dry_run and refusal is None,
            "application": application or None,
            "refusal": refusal,
            "evidence": evidence,
        }

    def _activate(self, calibration_id: str) -> None:
        self._records.activate(calibration_id, self.calibrations.setup)
        self.calibrations.catch_up()

    def _report(self) -> dict[str, Any]:
        names = [*self._settings.applications, DEFAULT] if self._settings.applications else [""]
        return {
            "applications": {name: self._progress(name) for name in names},
            "data": [asdict(each) for each in self._records.summaries(self.calibrations.setup)],
        }

    def _progress(self, application: str) -> dict[str, Any]:
        rows = self._rows(application)
        active = self.calibrations.find(application)
        return {
            "active": active and active.id,
            "rows": len(rows.rows),
            "lost": rows.lost(0),
            "pending": rows.pending,
        }

    def _rows(self, application: str) -> AnswerRows:
        limit = timedelta(seconds=self._settings.limits.deadline_s)
        return answer_rows(
            self._store,
            application=application,
            pool=self._settings.pool,
            answer_setup=self.calibrations.setup,
            key=self._key,
            pending_since=(datetime.now(UTC) - limit).isoformat(timespec="microseconds"),
        )

    def _terms(self, application: str) -> SameAnswer:
        equality = self._settings.aggregation.equality
        if equality not in COMPARABLE:
            raise InputError(
                f"answers cannot be compared two by two under `aggregation.equality: {equality}`: "
                f"set one of {', '.join(COMPARABLE)}",
                param="aggregation.equality",
            )
        own = self._settings.applications.get(application)
        if own is not None and own.turns == "together":
            raise InputError(
                f"applications.{application}.turns: rows of `same_answer` are first turns; set "
                "`separate`",
                param="application",
            )
        return self._settings.same_answer_of(application or None) or SameAnswer()

    def _evidence(self, terms: SameAnswer, found: SequentialCalibration) -> dict[str, Any]:
        threshold, policy = found.lambda_hat(terms.alpha), found.policy
        return {
            "alpha": terms.alpha,
            "reference": terms.reference,
            "max_rounds": terms.max_rounds,
            "equality": str(self._settings.aggregation.equality),
            "order": list(policy.order),
            "first_round": list(policy.order[: policy.borders[0]]),
            "reliabilities": dict(zip(policy.pool, policy.reliabilities, strict=True)),
            "candidates": len(policy.pool),
            "agreement": _agreement(found.answers),
            "expected_calls": found.expected_calls(threshold),
            "price_share": self._price_share(found, threshold),
            "frontier": [
                {"alpha": alpha, "expected_calls": found.expected_calls(found.lambda_hat(alpha))}
                for alpha in ALPHAS
            ],
        }

    def _price_share(self, found: SequentialCalibration, threshold: float) -> float | None:
        """Mean price of a request, as a share of that of the reference; None without prices."""
        if self._settings.prices is None:
            return None
        policy = found.policy
        price = dict(zip(self._settings.pool, self._settings.prices, strict=True))
        spent = np.array(list(accumulate(price[name] for name in policy.order)))
        calls = found.stops(found.answers, threshold).calls
        names = policy.pool if policy.reference is None else (policy.reference,)
        return float(spent[calls - 1].mean()) / sum(price[name] for name in names)

    def _refusal(
        self, terms: SameAnswer, found: SequentialCalibration, evidence: Mapping[str, Any]
    ) -> str | None:
        """Why the calibration is not activated."""
        if found.lambda_hat(terms.alpha) == math.inf:
            return (
                f"no finite threshold keeps alpha {terms.alpha:g}: {evidence['lost']} of "
                f"{evidence['n']} rows lack answers, and count as different; repair the candidates"
            )
        if evidence["agreement"] < MIN_AGREEMENT:
            return (
                f"not certifiable cheaply: on {evidence['agreement']:.0%} of the requests any two "
                f"answers are equal under `aggregation.equality: {evidence['equality']}`, and a "
                "vote of different answers says nothing; set an equality that fits the answers"
            )
        share = evidence["price_share"]
        if share is not None and share >= 1.0:
            what = "all candidates" if terms.reference == VOTE else f"{terms.reference!r} alone"
            return f"not worth it: a request would cost {share:.2f} of what {what} cost"
        if evidence["expected_calls"] >= len(found.policy.order):
            return (
                "not certifiable cheaply: every request would call all candidates of the order; "
                "set a larger alpha or max_rounds, or an equality that fits the answers better"
            )
        return None

    def _checked(self, application: str | None) -> str:
        configured = self._settings.applications
        names = [*configured, DEFAULT] if configured else []
        if application is not None and application not in names:
            raise NotFound(
                f"no application {application[:128]!r}; the applications are {names}",
                code="application_not_found",
                param="application",
            )
        return application or (DEFAULT if configured else "")


def _agreement(rows: AnswerClasses) -> float:
    """The share of rows in which two candidates gave the same answer."""
    shared = rows.same.sum(axis=2) > 1
    return float(shared.any(axis=1).mean())
