"""Upload reader: the rows and options of an upload, as a calibration takes them.

Rows of the gateway's own sample are compared with the stored decisions and thinned to one sampling
rate. Rows that trained the router are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from app.calibrations.answer_risk import textual
from app.calibrations.columns import RowColumns
from app.calibrations.parsing import ReadInstructions
from app.calibrations.progress import Progress
from app.calibrations.row_reader import read_rows
from app.calibrations.sampled_scores import StoredScores, compared
from app.calibrations.thinning import SamplingRates, thinned
from app.calibrations.trained_rows import without_trained
from app.calibrations.upload import Upload
from app.settings import Settings
from app.store import KeyPurpose, Store
from app.wire import bodies
from app.wire.candidate_payload import BodySettings
from app.wire.schemas import CalibrateFields, CalibrateOptions
from racer_core.errors import InputError
from racer_core.trained_router import TrainedRouter
from racer_core.types import RowsKind


class UploadReader:
    """Reads uploads for one router.

    Args:
        settings: The configuration.
        trained: The router.
        store: Has the keys of hashes.
        setup: Digest of the artifact and of how its candidates are served.
        sampled_scores: Scores of sampled decisions.
        sampling_rates: Sampling rates of stored requests.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        trained: TrainedRouter,
        store: Store,
        setup: str,
        sampled_scores: StoredScores,
        sampling_rates: SamplingRates,
    ) -> None:
        self._settings = settings
        self._salt = trained.artifact.salt
        self._trained_samples = trained.artifact.sample_fingerprints
        self._training_chars = trained.artifact.longest_text
        self._store = store
        self._setup = setup
        self._sampled_scores = sampled_scores
        self._sampling_rates = sampling_rates

    async def read(
        self, upload: Upload, given: dict[str, Any], progress: Progress
    ) -> tuple[RowColumns, CalibrateOptions, int]:
        """The rows and the options of an upload, and how many rows were left out.

        Args:
            upload: The rows.
            given: Options of the query and the form; a document's own come with its rows.
            progress: Takes how far it is.

        Raises:
            InputError: The rows or the options are not valid.
            JobCancelled: The job was cancelled.
        """
        keys = {each: await self._store.run(self._store.keys, each) for each in KeyPurpose}
        rows, options = await asyncio.to_thread(self._parsed, upload, given, progress, keys)
        rows = await self._store.run(
            compared,
            rows,
            self._sampled_scores,
            setup=self._setup,
            drawn=self._settings.drawn_applications,
            since=options.since,
        )
        if options.rows_kind is None and rows.sampled.all():
            options = options.model_copy(update={"rows_kind": RowsKind.TRAFFIC})
        rows, left_out = without_trained(rows, self._trained_samples)
        return rows, options, left_out

    async def thinned(
        self, rows: RowColumns, options: CalibrateOptions
    ) -> tuple[RowColumns, list[dict[str, Any]]]:
        """The rows as a sample at one rate for each application, and what says so in the evidence.

        Rows whose weights the upload bounds are not thinned.
        """
        return await self._store.run(self._thinned, rows, options)

    def _thinned(
        self, rows: RowColumns, options: CalibrateOptions
    ) -> tuple[RowColumns, list[dict[str, Any]]]:
        if options.since is not None and not rows.sampled.any():
            raise InputError(
                "since is a time for rows of the gateway's own sample, and no row has a "
                "`decision_id`: leave it out, or upload rows of `GET /shadow/rows`",
                param="since",
            )
        if not rows.sampled.any():
            return rows, []
        if options.max_weight is not None:
            weights = np.ones(len(rows)) if rows.weights is None else rows.weights
            return replace(rows, weights=weights), []
        return thinned(
            rows,
            self._sampling_rates(options.since),
            by_application=bool(self._settings.applications),
        )

    def _parsed(
        self,
        upload: Upload,
        given: dict[str, Any],
        progress: Progress,
        keys: Mapping[KeyPurpose, tuple[bytes, ...]],
    ) -> tuple[RowColumns, CalibrateOptions]:
        options = bodies.checked(CalibrateOptions, given)

        def add_fields(fields: dict[str, Any]) -> None:
            nonlocal options
            bodies.checked(CalibrateFields, fields)
            options = bodies.checked(CalibrateOptions, {**given, **fields})

        progress("reading", 0, upload.size)
        instructions = ReadInstructions(
            name=upload.name.lower(),
            source="rows" if upload.document else upload.name,
            document=upload.document,
            pool=self._settings.pool,
            query_chars=self._settings.limits.query_chars,
            equality=textual(self._settings.aggregation.equality),
            markers=self._settings.aggregation.reasoning_markers,
            salt=self._salt,
            store_keys=tuple(each.hex() for each in keys[KeyPurpose.SEEN_ROWS]),
            samples_key=keys[KeyPurpose.SAMPLES][0].hex(),
            training_chars=self._training_chars,
            text=self._settings.routing.text,
            own_texts=self._settings.own_texts,
            leave_out=self._settings.leave_outs,
            candidates=tuple(map(BodySettings.of, self._settings.candidates)),
            extra_fields=self._settings.limits.extra_fields,
            drawn=self._settings.drawn_applications,
            capabilities={
                each.name: each.capabilities.model_dump() for each in self._settings.candidates
            },
            prompts={
                digest: name
                for name, each in self._settings.applications.items()
                for digest in each.prompts
            },
        )
        return read_rows(upload, instructions, progress, add_fields), options
