"""HTTP client of the commands for a running gateway."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, cast
from urllib.parse import quote

import httpx2

from app.errors import GatewayRefused, GatewayUnreachable, JobUnknown
from app.wire.sse import EventReader
from racer_core import strict_json
from racer_core.errors import InputError, RacerError
from racer_core.types import Score

POLL_S: Final = 0.5  # before a job is polled after its event stream broke, or was missed
# How long a job may be looked for among the processes behind a balancer, each time anew: with eight
# of them and a choice by chance, 120 requests all reach others once in ten million times.
LOOK_FOR_S: Final = 60.0
_JOB_TIMEOUT_S: Final = 10.0  # to say how a job stands, or to cancel it
Progress = Callable[[str, int, int], None]  # phase, done, total


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRows:
    """Rows of `GET /shadow/rows` in files.

    Attributes:
        files: Application -> its file; None: there are no applications.
        judge: The judge whose verdicts the rows carry; None: they carry none.
        labels_left_out: Rows that lost their label beside the verdicts.
        unreadable: Rows whose stored request cannot be decrypted.
    """

    files: Mapping[str | None, Path]
    judge: str | None
    labels_left_out: int
    unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuery:
    """Which rows of `GET /shadow/rows`.

    Attributes:
        application: Only rows of this application; None: those of all.
        since: Only decisions from this time on, in ISO 8601; None: all that are stored.
        judge: The judge whose verdicts rows carry; None: the one with verdicts on most rows; empty:
            none.
        labels: The number of labels beside verdicts, fixed beforehand; None: as many as there are
            in random order.
        pool: ``any``: all stored requests, each with the candidates of its time; None: the rows of
            the configured pool.
    """

    application: str | None = None
    since: str | None = None
    judge: str | None = None
    labels: int | None = None
    pool: str | None = None

    def as_params(self) -> dict[str, str]:
        """The parameters of the request."""
        return {name: str(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """Rows of `GET /shadow/rows` as they arrive.

    Attributes:
        lines: JSON lines with their ends; the iteration raises what the transfer raises.
        labels_left_out: Rows that lost their label beside the verdicts.
    """

    lines: Iterator[bytes]
    labels_left_out: int


class GatewayClient:
    """Calls a gateway and raises its error messages. Close it, or use it as a context manager."""

    def __init__(self, url: str, key: str | None = None) -> None:
        if key is not None and not key.isascii():
            raise GatewayRefused("the key must be ASCII")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url = url
        self._client = httpx2.Client(
            base_url=url,
            headers=headers,
            timeout=600.0,
            trust_env=False,
            verify=not url.startswith("http:"),  # reading the system's certificates takes long
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def models(self) -> tuple[str, ...]:
        """GET /v1/models: the router, named pools and candidates."""
        return tuple(each["id"] for each in self._request("GET", "/v1/models")["data"])

    def reload(self) -> list[str]:
        """POST /admin/reload: the settings that changed."""
        return self._request("POST", "/admin/reload")["changed"]

    def readiness(self) -> dict[str, Any]:
        """GET /readyz: the loaded artifact, the active calibration, and what is missing."""
        return self._request("GET", "/readyz")

    def coverage(self) -> dict[str, Any]:
        """GET /coverage: which of the last requests were certified, and shapes of the others."""
        return self._request("GET", "/coverage")

    def ask(self, body: Mapping[str, Any]) -> str:
        """POST /v1/chat/completions: the text of the answer."""
        answer = self._request("POST", "/v1/chat/completions", json=body)
        message = answer["choices"][0]["message"]
        return message.get("content") or message.get("refusal") or ""

    def calibration_history(self) -> dict[str, Any]:
        """GET /calibrations: the stored calibrations as ``data``, newest first, and ``canary``."""
        return self._request("GET", "/calibrations")

    def calibrations(self) -> dict[str, dict[str, Any]]:
        """GET /calibrations: every stored calibration by its id, newest first."""
        return {each["id"]: each for each in self.calibration_history()["data"]}

    def running_canary(self) -> str | None:
        """GET /calibrations: the calibration that decides a share of the requests."""
        canary = self._request("GET", "/calibrations")["canary"]
        return None if canary is None or canary["ended"] else canary["calibration_id"]

    def answer_calibrations(self) -> dict[str, dict[str, Any]]:
        """GET /same-answer: calibrations of the promise `same_answer` by id, newest first."""
        return {each["id"]: each for each in self._request("GET", "/same-answer")["data"]}

    def activate_answers(self, calibration_id: str) -> dict[str, Any]:
        """POST /same-answer/{id}/activate."""
        place = f"/same-answer/{quote(calibration_id, safe='')}/activate"
        return self._request("POST", place)

    def route(
        self, text: str, alpha: float | None, *, execute: bool, score: Score | None = None
    ) -> dict[str, Any]:
        """POST /route."""
        body = {"query": text, "alpha": alpha, "execute": execute, "score": score}
        return self._request("POST", "/route", json=body)

    def calibrate_answers(self, application: str | None, *, dry_run: bool) -> dict[str, Any]:
        """POST /same-answer/calibrate."""
        body = {"application": application, "dry_run": dry_run}
        return self._request("POST", "/same-answer/calibrate", json=body)

    def calibrate(
        self, path: Path, options: dict[str, Any], progress: Progress | None = None
    ) -> dict[str, Any]:
        """POST /calibrate with a file of rows, and wait for the job.

        An interrupt cancels the job without a change. A ``.gz`` file is unpacked first, because
        the gateway takes no compressed bodies.
        """
        query = {name: str(value) for name, value in options.items() if value is not None}
        try:
            with unpacked(path) as (name, file):
                answer = self._request(
                    "POST", "/calibrate", params=query, files={"file": (name, file)}
                )
        except (OSError, EOFError, zlib.error) as exc:
            reason = getattr(exc, "strerror", None) or exc
            raise RacerError(f"{path}: cannot be read ({reason})") from exc
        return self._job_result(answer["job"], progress) if "job" in answer else answer

    def calibration(self, calibration_id: str) -> dict[str, Any]:
        """GET /calibrations/{id}."""
        return self._request("GET", f"/calibrations/{quote(calibration_id, safe='')}")

    def activate(
        self,
        calibration_id: str,
        *,
        expected_active_id: str | None = None,
        share: float | None = None,
    ) -> dict[str, Any]:
        """POST /calibrations/{id}/activate.

        Args:
            calibration_id: The calibration.
            expected_active_id: Change nothing unless this one is active; None: whichever is.
            share: Share of the requests that it decides as a canary; None: all of them.
        """
        body = {"expected_active_id": expected_active_id, "share": share}
        place = f"/calibrations/{quote(calibration_id, safe='')}/activate"
        return self._request("POST", place, json=body)

    def save_shadow_rows(self, folder: Path, query: SampleQuery) -> SavedRows:
        """GET /shadow/rows into files, one for each application.

        Args:
            folder: Where the files are written.
            query: Which rows.

        Raises:
            InputError: There are no rows.
        """
        files: dict[str | None, Path] = {}
        name_of_judge: str | None = None
        unreadable = 0
        with ExitStack() as stack:
            sample = stack.enter_context(self.sampled_rows(query))
            opened: dict[str | None, BinaryIO] = {}
            for line in sample.lines:
                row = strict_json.load_object(line)
                name = row.get("application")
                if name not in files:
                    files[name] = folder / f"{len(files)}.jsonl"
                    opened[name] = stack.enter_context(files[name].open("wb"))
                opened[name].write(line)
                name_of_judge = name_of_judge or row.get("judge")
                unreadable += row.get("unreadable") is True
        return SavedRows(
            files=files,
            judge=name_of_judge,
            labels_left_out=sample.labels_left_out,
            unreadable=unreadable,
        )

    @contextmanager
    def sampled_rows(self, query: SampleQuery) -> Generator[SampledRows]:
        """GET /shadow/rows, line by line.

        Raises:
            InputError: There are no rows.
        """
        with self._stream("/shadow/rows", query.as_params()) as response:
            yield SampledRows(
                lines=self._some_lines(response, query),
                labels_left_out=int(response.headers.get("x-racer-labels-left-out", "0")),
            )

    def _some_lines(self, response: httpx2.Response, query: SampleQuery) -> Iterator[bytes]:
        """The lines of a response, with their ends, but for blank ones. Raises InputError."""
        is_empty = True
        for line in _whole_lines(response.iter_bytes()):
            is_empty = False
            yield line
        if is_empty:
            shown = "".join(f", {name} {each}" for name, each in query.as_params().items() if each)
            raise InputError(
                f"the gateway at {self.url} has no sampled rows{shown}: set "
                "`watching.shadow_rate` above 0 and wait for requests and their labels"
            )

    def waiting_samples(
        self, *, judge: str | None, application: str | None, since: str | None, limit: int
    ) -> dict[str, Any]:
        """GET /shadow/waiting: samples that wait for a judge's verdicts, or for labels (None)."""
        options = {"judge": judge, "application": application, "since": since, "limit": limit}
        query = {name: str(value) for name, value in options.items() if value is not None}
        return self._request("GET", "/shadow/waiting", params=query)

    def add_feedback(self, decision_id: str, correct: Mapping[str, bool]) -> dict[str, Any]:
        """POST /feedback: verdicts, which count at once with an admin key."""
        body = {"decision_id": decision_id, "correct": dict(correct)}
        return self._request("POST", "/feedback", json=body)

    def add_judgements(self, decision_id: str, judge: str, correct: Mapping[str, bool]) -> None:
        """POST /shadow/judgements: a judge's verdicts on all answers to a sample."""
        body = {"decision_id": decision_id, "judge": judge, "correct": dict(correct)}
        self._request("POST", "/shadow/judgements", json=body)

    def _job_result(self, job: dict[str, Any], progress: Progress | None) -> dict[str, Any]:
        """Follow a job's events to its end and return its result.

        A job lives in one process. Behind a balancer of requests any process may answer, so a miss
        is repeated. `POST /calibrate?wait=true` would need no second request, but balancers and
        clients end a silent request long before a large job ends.
        """
        place = f"/calibrations/jobs/{job['id']}"
        try:
            while job["status"] in ("waiting", "running"):
                for job in self._events(f"{place}/events"):
                    _report(progress, job)
                if job["status"] in ("waiting", "running"):  # the stream broke, the job goes on
                    time.sleep(POLL_S)
                    job = self._job("GET", place)
                    _report(progress, job)
        except KeyboardInterrupt:
            self._job("DELETE", place)  # an error says that the job was not cancelled
            raise
        if job["error"] is not None:
            raise GatewayRefused(f"{job['error']['message']} ({job['error']['status']})")
        return cast("dict[str, Any]", job["result"])

    def _job(self, method: str, place: str) -> dict[str, Any]:
        """A job, read or cancelled in the process that has it.

        Raises:
            GatewayUnreachable: No process that has it answers.
            GatewayRefused: It cannot be cancelled any more.
        """
        deadline = time.monotonic() + LOOK_FOR_S
        while True:
            try:
                return self._request(method, place, timeout=_JOB_TIMEOUT_S)["job"]
            except (JobUnknown, GatewayUnreachable) as exc:
                if time.monotonic() > deadline:
                    raise GatewayUnreachable(
                        f"{exc}; asked for {LOOK_FOR_S:.0f} s. The calibration may still go on in "
                        f"another process of the gateway: `racer calibrations list --url {self.url}"
                        "` shows it once it is stored"
                    ) from exc
            time.sleep(POLL_S)

    def _events(self, path: str) -> Iterator[dict[str, Any]]:
        reader = EventReader()
        with (
            suppress(httpx2.TransportError, InputError),
            self._client.stream("GET", path) as response,
        ):
            for chunk in response.iter_bytes():
                for event in reader.feed(chunk):
                    yield strict_json.load_object(event)["job"]

    def _request(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        try:
            body: dict[str, Any] = self._send(method, path, **request).json()
        except ValueError as exc:
            raise self._is_no_gateway() from exc
        return body

    @contextmanager
    def _stream(self, path: str, params: Mapping[str, str]) -> Generator[httpx2.Response]:
        """A successful response, whose body is not read yet. Raises as :meth:`_send`."""
        with (
            self._transport_errors(),
            self._client.stream("GET", path, params=dict(params)) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise self._refusal(response)
            yield response

    def _send(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """A successful response. Raises GatewayUnreachable, GatewayRefused."""
        with self._transport_errors():
            response = self._client.request(method, path, **request)
        if response.status_code in (200, 202):
            return response
        raise self._refusal(response)

    @contextmanager
    def _transport_errors(self) -> Generator[None]:
        """Raise GatewayUnreachable where the connection fails."""
        try:
            yield
        except httpx2.TimeoutException as exc:
            raise GatewayUnreachable(f"the gateway at {self.url} did not answer in time") from exc
        except httpx2.RemoteProtocolError as exc:
            raise GatewayUnreachable(
                f"the gateway at {self.url} ended its answer early: see its log and try again"
            ) from exc
        except (httpx2.TransportError, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as exc:
            raise GatewayUnreachable(
                f"no gateway answers at {self.url}: start one with `racer serve` or `racer demo`"
            ) from exc

    def _refusal(self, response: httpx2.Response) -> GatewayRefused | GatewayUnreachable:
        """The error of a response that is none of success."""
        try:
            error = response.json()["error"]
            message, kind = error["message"], error["type"]
        except (ValueError, KeyError, TypeError) as exc:
            raise self._is_no_gateway() from exc
        if error.get("code") == "job_not_found":
            return JobUnknown(f"{message} ({response.status_code})")
        if kind == "upstream_error":
            return GatewayUnreachable(f"{message} ({response.status_code})")
        return GatewayRefused(f"{message} ({response.status_code})")

    def _is_no_gateway(self) -> GatewayUnreachable:
        return GatewayUnreachable(f"the server at {self.url} is not a RACER gateway: check --url")


def _report(progress: Progress | None, job: Mapping[str, Any]) -> None:
    if progress is not None:
        progress(job["phase"], job["done"], job["total"])


@contextmanager
def unpacked(path: Path) -> Generator[tuple[str, BinaryIO]]:
    """The name and the uncompressed content of a file. Raises OSError, EOFError, zlib.error."""
    with path.open("rb") as file, tempfile.TemporaryFile() as unpacked:
        if path.suffix != ".gz":
            yield path.name, file
            return
        with gzip.open(file) as packed:
            shutil.copyfileobj(packed, unpacked)
        unpacked.seek(0)
        yield path.stem, cast("BinaryIO", unpacked)


def _whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines with their ends, but for blank ones; a last line without an end gets one."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines if line.strip())
    if rest.strip():
        yield rest + b"\n"
