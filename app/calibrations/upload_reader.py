"""Upload reader: the rows and options of an upload, as a calibration takes them.

Rows of the gateway's own sample are compared with the stored decisions and thinned to one sampling
rate. Rows that trained the router are left out.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from io import BytesIO
from typing import Any, BinaryIO, Final, cast

import numpy as np

from app.calibrations.columns import RowColumns, load
from app.calibrations.jobs import Progress
from app.calibrations.parsing import MAX_LINE_BYTES, Fields, ParseSummary, ReadInstructions, parse
from app.calibrations.thinning import SamplingRates, StoredScores, compared, thinned
from app.calibrations.upload import Upload
from app.concurrency.threads import SMALL_BYTES
from app.errors import StoreFull
from app.settings import Settings
from app.store import KeyPurpose, Store
from app.wire import bodies
from app.wire.candidate_payload import BodySettings
from app.wire.schemas import CalibrateFields, CalibrateOptions
from racer_core.aggregation.rule import compares_texts
from racer_core.aggregation.wording import SHIPPED
from racer_core.errors import CalibrationError, InputError, RowsError
from racer_core.sandbox import Message, SandboxedProcess
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
        self._text_rule = trained.artifact.text_rule or SHIPPED
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
        """The rows as a sample at one rate for each application, with the evidence of it."""
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
        equality = self._settings.aggregation.equality
        instructions = ReadInstructions(
            name=upload.name.lower(),
            source="rows" if upload.document else upload.name,
            document=upload.document,
            pool=self._settings.pool,
            query_chars=self._settings.limits.query_chars,
            equality=equality if compares_texts(equality) else None,
            text_rule=self._text_rule.weights,
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


def without_trained(rows: RowColumns, trained: Collection[bytes]) -> tuple[RowColumns, int]:
    """The rows of an upload whose decision and conversation are not of training or tuning.

    `racer split` draws the rows of training at random, with their conversations whole and whatever
    their labels. So the other rows are drawn like the traffic, given the router.

    Args:
        rows: The rows.
        trained: Keyed hashes of the sampled conversations and decisions of training and tuning.

    Returns:
        The other rows, and how many were left out.

    Raises:
        CalibrationError: No row is left.
    """
    if rows.sample_prints is None or not trained:
        return rows, 0
    others = np.flatnonzero([each not in trained for each in rows.sample_prints])
    left_out = len(rows) - len(others)
    if not len(others):
        raise CalibrationError(
            f"all {left_out} rows trained the router, and none of them may calibrate it: wait for "
            "newer rows, or train on a part of the sample (racer split)"
        )
    return rows.take(others), left_out


# Row reader: parses an upload, small ones on a thread, all others in a sandboxed process.
#
# Parsing holds the interpreter, so queries would wait while a large upload is parsed here.

_MESSAGE_BYTES: Final = 4 * MAX_LINE_BYTES  # JSON escapes make text up to three times as long


def read_rows(
    upload: Upload, instructions: ReadInstructions, progress: Progress, fields: Fields
) -> RowColumns:
    """The rows of an upload. Blocks; call it on a thread.

    Args:
        upload: The upload.
        instructions: How to read it.
        progress: Takes the number of bytes read. Cancelling it kills the process.
        fields: Takes the fields beside the rows of a JSON document, and may refuse them.

    Raises:
        RowsError: A row is wrong; no row of the upload is used.
        InputError: A document that is not JSON.
    """
    with ExitStack() as stack:
        if upload.size <= SMALL_BYTES and not instructions.name.endswith(".parquet"):
            texts, arrays = BytesIO(), BytesIO()
            upload.file.seek(0)
            parsed = parse(
                instructions,
                upload.file,
                texts,
                arrays,
                fields=fields,
                progress=lambda done, total: progress("reading", done, total),
            )
        else:
            texts, arrays = (
                cast("BinaryIO", stack.enter_context(tempfile.TemporaryFile(dir=upload.folder)))
                for _ in range(2)
            )
            parsed = _parse_in_sandbox(upload, instructions, texts, arrays, progress, fields)
        return load(
            parsed.pool,
            texts,
            arrays,
            duplicates=parsed.duplicates,
            near_duplicates=parsed.near_duplicates,
            assumed=parsed.assumed,
            guessed_kind=parsed.guessed_kind,
        )


def _parse_in_sandbox(
    upload: Upload,
    instructions: ReadInstructions,
    texts: BinaryIO,
    arrays: BinaryIO,
    progress: Progress,
    fields: Fields,
) -> ParseSummary:
    upload.file.flush()
    descriptors = [file.fileno() for file in (upload.file, texts, arrays)]
    process = SandboxedProcess(
        "app.calibrations.row_reader_process",
        [str(each) for each in descriptors],
        message_bytes=_MESSAGE_BYTES,
        pass_fds=descriptors,
        # Arrow's other allocators reserve more address space than they use.
        environment={"ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    with process, progress.cancelling(process.kill):
        process.send(asdict(instructions))
        result = _last_message(process, progress, fields)
        exit_code = process.wait()
    progress.raise_if_cancelled()
    return _parsed(result, instructions.source, exit_code)


def _last_message(process: SandboxedProcess, progress: Progress, fields: Fields) -> Message | None:
    """Passes fields and progress on; returns the result, or None if the process ended without."""
    while (message := process.receive()) is not None:
        if "fields" in message:
            fields(message["fields"])
        elif "done" in message:
            progress("reading", int(message["done"]), int(message["total"]))
        else:
            return message
    return None


def _parsed(result: Message | None, source: str, exit_code: int) -> ParseSummary:
    """The result of a process.

    Raises:
        RowsError: Rows are wrong, or the process ended without a result.
        InputError: A document that is not JSON.
        StoreFull: The disk is full.
        RuntimeError: The reader itself failed.
    """
    match result:
        case {
            "pool": pool,
            "duplicates": duplicates,
            "near_duplicates": near,
            "assumed": assumed,
            "guessed_kind": kind,
        }:
            return ParseSummary(
                pool=tuple(pool),
                duplicates=int(duplicates),
                near_duplicates=int(near),
                assumed=int(assumed),
                guessed_kind=RowsKind(kind),
            )
        case {"problems": problems, "count": count}:
            # The process sends only the problems that are listed; the others are counted.
            raise RowsError(source, [*problems, *[""] * (int(count) - len(problems))])
        case {"refused": message, "param": param}:
            raise InputError(message, param=param)
        case {"full": True}:
            raise StoreFull("there is no room on the disk for the rows; nothing was changed")
        case {"failed": place}:
            raise RuntimeError(f"reading rows failed: {place}")
        case _:
            slow = "took over two minutes of processor time to read"
            died = f"ended its reader (exit code {exit_code})"
            cause = slow if exit_code == -signal.SIGXCPU else died
            raise RowsError(source, [f"the file {cause}; nothing of it was used"])
