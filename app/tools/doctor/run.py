"""Health report: the checks of a deployment, run in the order of their dependencies."""

from __future__ import annotations

import errno
import math
import os
import shutil
import socket
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import httpx2
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from app import settings
from app.calibrations.carried import read_carried
from app.calibrations.served_level import PAGE, served_levels
from app.calibrations.service import setup_digest
from app.errors import (
    ModelListElsewhere,
    ModelListError,
    ModelListUnreachable,
    RecoveryNeeded,
    SettingsError,
    StoreError,
    StoreFileDamaged,
    UpstreamUnauthorized,
)
from app.monitoring.coverage import QUESTIONS
from app.monitoring.drift.risk import detection
from app.monitoring.drift.statistics import RISK_SHARE
from app.routing.artifact_files import is_there, open_trained
from app.settings import Secrets, Settings
from app.settings.address import gateway_url
from app.settings.secrets import SAMPLES_KEY
from app.store import engine, schema
from app.store.calibration_record import CalibrationRecord
from app.store.inspection import StoreInspection, inspect_store
from app.upstream.model_list import ModelList
from app.upstream.replicas import open_targets
from app.upstream.served_models import ListAnswer, answers_of, few, only_model
from racer_core import artifacts
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.threshold import fewest_rows
from racer_core.encoder.base import EncoderSpec
from racer_core.encoder.hub import cached_folder, download_command
from racer_core.errors import ArtifactError
from racer_core.trained_router import TrainedRouter


def run_checks(path: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check everything that a configuration names, and this machine.

    Args:
        path: The configuration.
        environment: Environment variables, with the secrets.
    """
    finding, opened = check_configuration(path, environment)
    yield finding
    if opened is None:
        yield check_gpu(inspect_gpu(), None)
        return
    settings, secrets = opened
    finding, trained = check_artifact(settings)
    yield finding
    yield from _machine_findings(settings, trained)
    found_endpoints, listings = check_endpoints(settings, secrets)
    yield from found_endpoints
    yield check_clock(listings)
    if settings.has_store:
        yield from _store_findings(settings, secrets, trained)
    yield from check_ports(settings)
    yield from _coverage_findings(settings, secrets)


def _machine_findings(settings: Settings, trained: TrainedRouter | None) -> Iterator[Finding]:
    backend = settings.encoder.backend if trained is None else trained.artifact.encoder.backend
    if trained is not None:
        yield check_encoder(trained.artifact.encoder)
    yield check_gpu(inspect_gpu(), backend)


def _store_findings(
    settings: Settings, secrets: Secrets, trained: TrainedRouter | None
) -> Iterator[Finding]:
    setup = None
    if trained is not None:
        setup = setup_digest(trained.artifact.digest, settings.candidates)
    findings, inspection = check_store(secrets.store(settings), setup)
    yield from findings
    if inspection is not None:
        yield check_sampling(settings, inspection, has_artifact=trained is not None)
    if inspection is not None and setup is not None:
        assert settings.artifact is not None  # it was opened
        try:
            carried = read_carried(settings.artifact, setup, settings.pool)
        except ArtifactError as exc:
            yield refused_calibration(exc)
        else:
            yield check_calibration(
                inspection, settings.routing.alpha, datetime.now(UTC), carried and carried.record
            )
            if inspection.record is not None:
                yield check_level(settings, inspection.record)
        if (alarms := check_alarms(settings, inspection)) is not None:
            yield alarms


_ARTIFACT = "artifact"


def check_artifact(settings: Settings) -> tuple[Finding, TrainedRouter | None]:
    """Return the finding and the opened artifact, if it opens; the encoder stays closed."""
    if settings.artifact is None:
        cure = "run `racer train`, then set `artifact`"
        found = f"no artifact is configured: {settings.fallback} answers `auto`"
        return warning(_ARTIFACT, found, cure), None
    if not is_there(settings.artifact):
        if settings.remote_artifact is not None:
            found = f"{settings.remote_artifact.shown} is fetched at the first start"
            return warning(
                _ARTIFACT, found, "try it: `racer validate` fetches it into `cache`"
            ), None
        cure = "run `racer bootstrap` with questions; a running gateway loads the router it trains"
        found = f"none is at {settings.artifact} yet: {settings.fallback} answers `auto`"
        return warning(_ARTIFACT, found, cure), None
    try:
        trained = open_trained(settings)
    except (ArtifactError, SettingsError) as exc:
        cure = "undo the change of the configuration, or run `racer train` again"
        return failed(_ARTIFACT, str(exc), cure), None
    kind = trained.artifact.router.kind
    return ok(_ARTIFACT, f"{settings.artifact}: {kind}, {len(trained.pool)} candidates"), trained


_CALIBRATION = "calibration"
UPLOAD: Final = "run `racer calibrate ROWS` once the gateway serves"


def refused_calibration(exc: ArtifactError) -> Finding:
    """A calibration that the artifact carries and no gateway takes, which stops the start."""
    message, _, cure = str(exc).rpartition(": ")
    return failed(_CALIBRATION, message, cure)


def check_calibration(
    found: StoreInspection,
    alpha: float,
    now: datetime,
    carried: CalibrationRecord | None = None,
) -> Finding:
    """Compare the calibration with alpha and the clock.

    Args:
        found: What the store holds for this artifact and these candidates.
        alpha: Default risk level of requests.
        now: The current time.
        carried: The calibration that the artifact carries.
    """
    if found.active is None and carried is not None:
        return ok(
            _CALIBRATION, f"{carried.id}, which the artifact carries: active from the first start"
        )
    if found.active is None:
        if found.other is None:
            return warning(
                _CALIBRATION, "no calibration is active: no certificate holds until one is", UPLOAD
            )
        mismatch = f"{found.other.id} is of another artifact, or of candidates served otherwise"
        return failed(_CALIBRATION, mismatch, UPLOAD)
    active, evidence = found.active, found.active.evidence
    n, needed = int(evidence["n"]), fewest_rows(alpha, evidence.get("delta"))
    age = now - datetime.fromisoformat(active.created_at)
    summary = f"{active.id}, {_age_in_words(age)}, {n} rows count, alpha {alpha:g}"
    if age < timedelta(minutes=-1):
        return warning(
            _CALIBRATION, summary, "set this machine's clock: the calibration is from the future"
        )
    if needed is None or n < needed:
        return warning(
            _CALIBRATION,
            f"{summary} needs {needed or 'more than there can be'}: all candidates are called",
            "calibrate on that many answerable rows, or raise `routing.alpha`",
        )
    return ok(_CALIBRATION, summary)


_LEVEL = "risk level"


def check_level(settings: Settings, record: CalibrationRecord) -> Finding:
    """Say which risk levels are served, and what holds for them.

    Args:
        settings: The configuration, which is the one place of the level.
        record: The active calibration.
    """
    levels = served_levels(settings, record)
    said = [
        f"{name}: {each.in_words()}" if name else each.in_words() for name, each in levels.items()
    ]
    summary = "; ".join(said)
    cures = (each.certificate.advice or each.remark for each in levels.values())
    if (cure := next((each for each in cures if each), None)) is None:
        return ok(_LEVEL, summary)
    return warning(_LEVEL, summary, f"{cure} ({PAGE})")


def _age_in_words(age: timedelta) -> str:
    for unit, name in ((timedelta(days=1), "day"), (timedelta(hours=1), "hour")):
        if count := max(age, timedelta(0)) // unit:
            return f"{count} {name}{'s' if count > 1 else ''} old"
    return "made within the hour"


_COVERAGE = "coverage"
_NAMED: Final = 4  # kinds of void requests in a finding
_BOOTSTRAPPED: Final = Path("bootstrap") / "rows.jsonl"  # of `racer bootstrap`


def _coverage_findings(settings: Settings, secrets: Secrets) -> Iterator[Finding]:
    """A finding per application, where the configuration's gateway serves and has answered."""
    key = secrets.admin_key
    headers = {} if key is None else {"authorization": f"Bearer {key.get_secret_value()}"}
    # Only the gateway knows its port if the configuration says 0. Another program may answer there.
    with suppress(httpx2.HTTPError, SettingsError, ValueError, KeyError, TypeError):
        url = f"{gateway_url(settings, admin=True)}/coverage"
        answer = httpx2.get(url, headers=headers, timeout=2.0, trust_env=False)
        if answer.status_code in (401, 403):
            yield ok(_COVERAGE, "set $RACER_ADMIN_KEY to see which requests are certified")
        elif answer.status_code == 200:
            found = answer.json()["applications"]
            yield from (check_coverage(each) for each in found if each["requests"])


def check_coverage(found: Mapping[str, Any]) -> Finding:
    """Say which of the last requests of an application were certified, and what cures the others.

    Args:
        found: One of `applications` in `GET /coverage`.
    """
    name = found["application"]
    check = _COVERAGE if name is None else f"{_COVERAGE} {name}"
    summary = f"{found['certified']} of the last {found['requests']} requests are certified"
    others = found["others"]
    if not others:
        return ok(check, summary)
    kinds = [f"{each['requests']} with {each['what']}" for each in others[:_NAMED]]
    if len(others) > _NAMED:
        kinds.append(f"{len(others) - _NAMED} other kinds")
    command: str = found["command"] or others[0]["command"]
    if _BOOTSTRAPPED.is_file():  # whose plain answers are not asked for again
        command = command.replace(QUESTIONS, str(_BOOTSTRAPPED), 1)
    return warning(check, f"{summary}; not: {'; '.join(kinds)}", command)


_CLOCK = "clock"
SKEW_S: Final = 5.0  # Date headers have whole seconds, and an answer takes time


def check_clock(listings: Sequence[ModelList]) -> Finding:
    """Compare this machine's clock with the servers' Date headers.

    Ids, ages and leases depend on it.
    """
    offsets = {each.base_url: each.ahead_s for each in listings if each.ahead_s is not None}
    off = {url: ahead for url, ahead in offsets.items() if abs(ahead) > SKEW_S}
    if not offsets:
        return ok(_CLOCK, "no server sends a Date header to compare with")
    if not off:
        return ok(_CLOCK, f"within {SKEW_S:.0f} s of {_servers(len(offsets))}")
    url, ahead = max(off.items(), key=lambda each: abs(each[1]))
    if len(off) == len(offsets) > 1:
        found = (
            f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} {_servers(len(offsets))}"
        )
        return warning(_CLOCK, found, "set this machine's clock, with NTP")
    found = f"{url} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
    return warning(_CLOCK, found, "set the clock that is wrong, with NTP")


def _servers(count: int) -> str:
    return "the server" if count == 1 else f"all {count} servers"


_CONFIGURATION = "configuration"


def check_configuration(
    path: Path, environment: Mapping[str, str]
) -> tuple[Finding, tuple[Settings, Secrets] | None]:
    """Return the finding, and settings and secrets if they are valid."""
    if not path.exists():
        return failed(
            _CONFIGURATION, f"{path} is not there", "give --config, or write one with `racer init`"
        ), None
    try:
        configured, secrets = settings.load(path, environment)
    except SettingsError as exc:
        return failed(_CONFIGURATION, str(exc), "correct the setting that the message names"), None
    count = len(configured.pool)
    found = f"{path}: {count} candidate{'s' if count > 1 else ''}"
    return ok(_CONFIGURATION, found), (configured, secrets)


_ENCODER = "encoder"


def check_encoder(spec: EncoderSpec) -> Finding:
    """Open the encoder as a start does, but without a download."""
    local = _local_spec(spec)
    if local is None:
        return warning(
            _ENCODER,
            f"{spec.name} is not on this machine: the first start downloads it from the hub",
            f"run `{download_command(spec.name, spec.pin)}` first, or `racer validate`",
        )
    try:
        opened = artifacts.open_encoder(local).spec
    except ArtifactError as exc:
        cure = "restore the encoder's folder and its device, or run `racer train` again"
        return failed(_ENCODER, str(exc), cure)
    return ok(_ENCODER, f"{spec.name}, {opened.dtype} on {opened.backend}")


def _local_spec(spec: EncoderSpec) -> EncoderSpec | None:
    """The encoder as a local folder; None if it is a hub name that was never downloaded."""
    if spec.kind != "huggingface" or Path(spec.name).is_absolute():
        return spec
    found = cached_folder(spec.name, spec.pin)
    if found is None:
        return None
    if spec.pin is None:  # its name alone might download a newer commit
        return replace(spec, name=str(found))
    return spec


def check_endpoints(settings: Settings, secrets: Secrets) -> tuple[list[Finding], list[ModelList]]:
    """Return a finding per candidate and evaluator, and the model lists of their servers."""
    candidates = {each.name: each for each in settings.candidates}
    keys = {each.name: each.api_key_env for each in settings.candidates}
    models = {name: rater.model or "" for name, rater in settings.raters.items()}
    keys |= {name: rater.api_key_env for name, rater in settings.raters.items()}
    targets = open_targets(settings, secrets)
    answers_by_target = answers_of([*targets.values()])

    def model_of(name: str, answer: ListAnswer) -> str:
        if (candidate := candidates.get(name)) is None:
            return models[name]
        return only_model(candidate, answer) or candidate.served_as

    findings = [
        _worst(judge(name, answer, model_of(name, answer), keys[name]) for answer in answers)
        for name, answers in zip(targets, answers_by_target, strict=True)
    ]
    return findings, [
        each for answers in answers_by_target for each in answers if isinstance(each, ModelList)
    ]


def judge(
    name: str,
    answer: ListAnswer,
    model: str,
    key_env: str | None,
) -> Finding:
    """Judge one server's answer for one model."""
    check_endpoints = f"endpoint {name}"
    if isinstance(answer, UpstreamUnauthorized):
        cure = f"put the right key into ${key_env}" if key_env else "name its key in `api_key_env`"
        return failed(check_endpoints, str(answer), cure)
    if isinstance(answer, ModelListUnreachable):
        return failed(check_endpoints, str(answer), "start the server, or change `base_url`")
    if isinstance(answer, ModelListElsewhere):
        return failed(check_endpoints, answer.message, answer.cure)
    unsure = f"make sure that it serves {model}: no answer was requested from it"
    if isinstance(answer, ModelListError):
        return warning(check_endpoints, str(answer), unsure)
    if model in answer.models:
        return ok(check_endpoints, f"{answer.base_url} serves {model}")
    if not answer.models:
        return warning(check_endpoints, f"{answer.base_url} lists no model", unsure)
    return failed(
        check_endpoints,
        f"{answer.base_url} serves {few(answer.models)}, not {model}",
        "set `model` to a name that the server lists, or load the model there",
    )


def _worst(findings: Iterable[Finding]) -> Finding:
    """The worst finding of a candidate's replicas."""
    return max(findings, key=lambda each: list(State).index(each.state))


_GPU = "GPU"
_DRIVER: Final = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """The GPUs of this machine, as torch and the driver report them."""

    built_for: str | None  # the CUDA version of torch's build; None: a CPU build
    devices: tuple[str, ...]  # names of the GPUs that torch can use
    complaint: str = ""  # torch's warning during the search
    driver: bool = False  # NVIDIA's driver is loaded, whether or not torch can use it


def inspect_gpu() -> GpuStatus:
    """Ask torch for its devices, and capture its warnings."""
    import torch

    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            devices = tuple(torch.cuda.get_device_name(number) for number in range(count))
        except RuntimeError:  # the device is in the exclusive use of another process
            devices = ()
    return GpuStatus(
        built_for=torch.version.cuda,
        devices=devices,
        complaint=" ".join(str(each.message) for each in messages),
        driver=_DRIVER.exists(),
    )


def check_gpu(machine: GpuStatus, backend: str | None) -> Finding:
    """Compare the GPUs with what the encoder needs.

    Args:
        machine: The GPUs of this machine.
        backend: The encoder's backend; None if there is no artifact yet.
    """
    if machine.devices:
        used = "" if backend in (None, "cuda") else "; the encoder does not use it"
        return ok(_GPU, f"{', '.join(machine.devices)} (CUDA {machine.built_for}){used}")
    bad = failed if backend == "cuda" else warning
    if "driver" in machine.complaint and "too old" in machine.complaint:
        return bad(
            _GPU,
            f"the driver is too old for torch's build (CUDA {machine.built_for})",
            "install a newer driver, or torch for an older CUDA (TORCH_INDEX in the Makefile)",
        )
    if machine.built_for is None and machine.driver:
        return bad(
            _GPU,
            "there is a GPU, but this build of torch supports only the CPU",
            "install torch's CUDA build (TORCH_INDEX in the Makefile)",
        )
    if machine.driver:
        cure = "check `nvidia-smi`, and whether CUDA_VISIBLE_DEVICES hides the GPU"
        return bad(_GPU, "the driver is loaded, but torch finds no GPU", cure)
    if backend == "cuda":
        cure = "serve on a machine with a GPU, or run `racer train --backend cpu`"
        return failed(_GPU, "no GPU, and the encoder was trained for one", cure)
    return ok(_GPU, "none; the encoder runs on the CPU")


def check_ports(settings: Settings) -> list[Finding]:
    """Return a finding per listening socket."""
    findings = [check_port("port", settings.host, settings.port)]
    if (admin := settings.access.admin) is not None:
        if admin.port == settings.port:
            cure = "choose another `access.admin.port`"
            return [*findings, failed("admin port", f"{admin.port} is the gateway's own", cure)]
        findings.append(check_port("admin port", admin.host, admin.port))
    return findings


def check_port(check_ports: str, host: str, port: int) -> Finding:
    """Bind the port for a moment, without accepting connections."""
    place = f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                cure = "change `host` or `port`, or grant the user the right to bind it"
                return failed(check_ports, f"{place} cannot be bound ({exc.strerror})", cure)
        else:
            return ok(
                check_ports, f"{place} is free" if port else "0: the system picks a free port"
            )
    if _is_gateway(host, port):
        return ok(check_ports, f"a gateway serves at {place}")
    return failed(
        check_ports, f"{place} is in use by another program", "choose another port with --port"
    )


def _is_gateway(host: str, port: int) -> bool:
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    netloc = f"[{address}]" if ":" in address else address
    with suppress(httpx2.HTTPError, ValueError):
        answer = httpx2.get(f"http://{netloc}:{port}/healthz", timeout=2.0, trust_env=False)
        return answer.json() == {"status": "ok"}
    return False


_SAMPLING = "sampling"
TRAIN: Final = (
    "run `racer samples rows.jsonl`, `racer split rows.jsonl` and `racer train`; a running gateway "
    "loads the artifact"
)
LABEL: Final = (
    "label them: an application's `checker`, the page's tab Label, or `racer label --from-shadow`"
)
CALIBRATE: Final = "run `racer calibrate --from-shadow`"


def check_sampling(settings: Settings, found: StoreInspection, *, has_artifact: bool) -> Finding:
    """Say what is sampled, and what is missing on the way to a calibration from it.

    Args:
        settings: The configuration. With stored requests it is not read without their key.
        found: What the store holds.
        has_artifact: Whether a router was trained.
    """
    if not settings.samples_traffic:
        return ok(_SAMPLING, "off: `watching.shadow_rate` draws rows from live traffic")
    labelled = found.sampled - found.unlabelled
    summary = (
        f"on, requests stored by ${SAMPLES_KEY}"
        if settings.watching.store_requests
        else "on, requests not stored"
    )
    summary += f"; {found.sampled} sampled, {found.unlabelled} wait for a label"
    if not has_artifact and not settings.watching.store_requests:
        cure = "set `watching.store_requests: true`: rows without requests train no router"
        return warning(_SAMPLING, summary, cure)
    if found.active is not None or not found.sampled:
        return ok(_SAMPLING, summary)
    if not labelled:
        return warning(_SAMPLING, summary, LABEL)
    return warning(_SAMPLING, summary, CALIBRATE if has_artifact else TRAIN)


_ALARMS = "alarms"
LATE_DAYS: Final = 60.0


def check_alarms(settings: Settings, found: StoreInspection) -> Finding | None:
    """Say within how many days a risk of twice alpha is seen; None: no losses are watched."""
    watching, active = settings.watching, found.active
    bound = None if active is None else active.evidence.get("risk_q95")
    if active is None or watching.false_alarm is None or not bound:
        return None
    week = found.traffic
    seen = detection(
        RiskEProcess(bound, level=watching.false_alarm * RISK_SHARE),
        active.evidence["alpha"],
        judged_a_week=week.judged,
        counted_a_week=week.requests * active.evidence["n"] / active.evidence["rows"],
        labelled=week.labelled,
    )["risks"][-1]
    needed, days, rate = seen["judged"], seen["days"], seen["rate_for_a_week"]
    risk = f"a risk of {seen['risk']:.0%}"
    if needed is None and week.labelled < 1.0:
        summary = f"no alarm sees {risk}: {week.labelled:.0%} of the sample get a label"
        return warning(_ALARMS, summary, "label all of a smaller sample (`watching.shadow_rate`)")
    if needed is None:
        return warning(_ALARMS, f"no alarm sees {risk}: so few rows may have it", UPLOAD)
    when = "never, as none is judged" if days is None else f"{math.ceil(days)} days"
    summary = f"{risk} takes {needed} judged requests: {when} at {week.judged} judged a week"
    if not settings.samples_traffic or (days is not None and days <= LATE_DAYS):
        return ok(_ALARMS, summary)
    faster = (
        "judge more requests"
        if rate is None
        else f"a sampling rate of {rate:.2g} (`watching.shadow_rate`), all judged, makes it a week"
    )
    return warning(
        _ALARMS, summary, f"{faster}; or let certificates expire: `watching.expire_after_days`"
    )


_STORE = "store"
DISK = "disk"
_WARNING_BYTES: Final = 2**30
_FAILURE_BYTES: Final = 64 * 2**20


def check_store(url: str, setup: str | None) -> tuple[list[Finding], StoreInspection | None]:
    """Return the findings, and what the store holds if it can be read.

    Args:
        url: URL of the store.
        setup: Digest of artifact and candidates; None without an artifact.
    """
    shown = engine.redacted_url(url)
    file = _file(url)
    findings: list[Finding] = [] if file is None else _file_findings(file)
    if any(each.cure for each in findings if each.check == _STORE):
        return findings, None
    try:
        found = inspect_store(url, setup)
    except RecoveryNeeded as exc:
        return [
            warning(_STORE, str(exc), "start the gateway, which rolls that back"),
            *findings,
        ], None
    except StoreFileDamaged as exc:
        return [failed(_STORE, str(exc), engine.RESTORE), *findings], None
    except (SettingsError, StoreError) as exc:
        return [
            failed(_STORE, str(exc), "start the database, or correct `store` or its URL"),
            *findings,
        ], None
    return [version(shown, found.version), *findings], found


def version(shown: str, found: str | None) -> Finding:
    """Compare the schema version with this program's."""
    if found == schema.HEAD:
        return ok(_STORE, f"{shown}, tables of version {found}")
    if found is None:
        return ok(_STORE, f"{shown} is empty: the first start creates its tables")
    return failed(
        _STORE, f"{shown} has tables of version {found}, not {schema.HEAD}", schema.cure(found)
    )


def room(folder: Path, free: int) -> Finding:
    """Compare the free space with what a gateway needs."""
    left = f"{free / 2**30:.1f} GiB free at {folder}"
    cure = "free disk space, or lower `watching.keep_rows`"
    if free < _FAILURE_BYTES:
        return failed(DISK, left, cure)
    return warning(DISK, left, cure) if free < _WARNING_BYTES else ok(DISK, left)


def _file(url: str) -> Path | None:
    """The file of a SQLite store."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(parsed.database or "")


def _file_findings(file: Path) -> list[Finding]:
    if file.is_dir():
        return [failed(_STORE, f"{file} is a folder", "name a file in this folder as `store`")]
    if not file.parent.is_dir():
        return [
            failed(_STORE, f"{file.parent} is no folder", "create the folder, or change `store`")
        ]
    target = file if file.exists() else file.parent
    # SQLite keeps a journal beside its file.
    if not all(os.access(each, os.W_OK) for each in (target, file.parent)):
        cure = "grant write access to the user that runs the gateway"
        return [failed(_STORE, f"{target} cannot be written", cure)]
    return [room(file.parent, shutil.disk_usage(file.parent).free)]


class State(StrEnum):
    """Severity of a finding."""

    OK = "OK"
    WARNING = "warning"  # the gateway works, but something needs attention
    FAILED = "failed"  # the gateway does not start, or does not route


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of what a check examined, and the next step: one row of the table."""

    check: str
    state: State
    found: str
    cure: str = ""  # what to do next; empty if the state is OK


def ok(check: str, found: str) -> Finding:
    """A finding without a problem."""
    return Finding(check, State.OK, found)


def warning(check: str, found: str, cure: str) -> Finding:
    """It works, but something needs attention."""
    return Finding(check, State.WARNING, found, cure)


def failed(check: str, found: str, cure: str) -> Finding:
    """A failure: the gateway does not start, or does not route."""
    return Finding(check, State.FAILED, found, cure)
