"""Steps of a bootstrap: the words of each command, and what its result depends on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import UpstreamError
from app.settings import Settings
from app.settings.applications import leave_out_digest
from app.tools.bootstrap.gains import SMALLER, configured, gains
from app.tools.bootstrap.gateway import wait_for_artifact
from app.tools.bootstrap.labels import Grading
from app.tools.bootstrap.state import BootstrapState, Step
from app.tools.gateway_client import GatewayClient
from app.tools.labelling.people import KIND as PEOPLE
from app.tools.labelling.shapes import ShapeOptions
from app.tools.router_rows import read_rows
from racer_core import artifacts
from racer_core.aggregation.vote import Method
from racer_core.errors import ArtifactError, CalibrationError, RowsError
from racer_core.offline.encoder_choice import offered
from racer_core.offline.stacking import CROSS_FITTED
from racer_core.offline.training_rows import with_labels
from racer_core.records import reader
from racer_core.records.split import TUNING_SHARES, shares_for
from racer_core.types import RiskTarget, RowsKind

if TYPE_CHECKING:
    from racer_core.offline.evaluation_result import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """Options of the command; those of one step have the names that they have there."""

    config: Path
    queries: Path
    references: Path | None
    grade: str | None  # None: the references choose, or the judge grades
    judge: str | None
    judge_model: str | None
    judge_calls: int | None
    judge_cost: float | None
    accepts_labels: bool  # although they are doubted
    concurrency: int
    shares: Mapping[str, float] | None  # None: as `racer_core.records.split.shares_for` says
    router: str
    encoders: tuple[str, ...]
    kind: str | None
    alpha: float | None
    write: bool
    folder: Path
    url: str  # of the admin endpoints
    data_url: str  # of clients
    wait_s: float  # for the gateway to load the artifact
    shapes: ShapeOptions = field(default_factory=ShapeOptions)  # of requests, beside questions


class Steps:
    """The steps, each made when the ones before it are done."""

    def __init__(
        self,
        options: BootstrapOptions,
        state: BootstrapState,
        gateway: GatewayClient,
        grading: Grading,
    ) -> None:
        self._options = options
        self._state = state
        self._gateway = gateway
        self._grading = grading
        self._rows = options.folder / "rows.jsonl"
        self._parts = options.folder / "parts"
        self._shares = options.shares or TUNING_SHARES  # of the rows that there are: `split`

    @property
    def rows(self) -> Path:
        """The labelled rows."""
        return self._rows

    @property
    def calibration_rows(self) -> Path:
        """The rows that calibrate; beside shapes of requests in a file of their own."""
        if self._options.shapes.likes:
            return self._options.folder / "certified.jsonl"
        return self._part("calibration")

    def label(self, settings: Settings) -> Step:
        """Every candidate answers every question, through the gateway."""
        given = self._options
        command = [
            *("label", str(given.queries), "--config", str(given.config), "--out", str(self._rows)),
            *_graded(self._grading.kind),
            *_option("--reference", given.references),
            *_option("--judge", given.judge),
            *_option("--judge-model", given.judge_model),
            *_option("--judge-calls", given.judge_calls),
            *_option("--judge-cost", given.judge_cost),
            *("--concurrency", str(given.concurrency), "--through-gateway", "--url", given.url),
            *(() if given.shapes.likes else given.shapes.words),
        ]
        references = () if given.references is None else (given.references,)
        return Step(
            name="label",
            command=tuple(command),
            reads=(given.queries, *references),
            facts=[
                *_answers_depend_on(settings),
                *([] if given.shapes.likes else _contents(given.shapes)),
            ],
            writes=(self._rows,),
            keep=labelled,
        )

    def like(self, settings: Settings) -> Step:
        """The questions that calibrate once more, as requests of these shapes are sent."""
        given, rows = self._options, self._part("calibration")
        command = [
            *("label", str(rows), "--config", str(given.config)),
            *("--out", str(self.calibration_rows), *_graded(self._grading.kind)),
            *_option("--judge", given.judge),
            *_option("--judge-model", given.judge_model),
            *("--concurrency", str(given.concurrency), "--url", given.url),
            *given.shapes.words,
        ]
        return Step(
            name="like",
            command=tuple(command),
            reads=(rows,),
            facts=[*_answers_depend_on(settings), *_contents(given.shapes)],
            writes=(self.calibration_rows,),
            keep=labelled,
        )

    def split(self, settings: Settings) -> Step:
        """Rows to train on, to choose settings, and to calibrate."""
        self._shares = self._chosen_shares(settings)
        shares = [f"--share={name}={share!r}" for name, share in self._shares.items()]
        command = ["split", str(self._rows), "--out", str(self._parts), *shares, *self._kind]
        written = tuple(map(self._part, self._shares))

        def remove_remains() -> Sequence[str]:
            # An earlier or interrupted split leaves some, and the command replaces none.
            for name in {*TUNING_SHARES, *self._shares}:
                self._part(name).unlink(missing_ok=True)
            return ()

        return Step(
            name="split",
            command=tuple(command),
            reads=(self._rows,),
            writes=written,
            keep=_counts,
            prepare=remove_remains,
        )

    def train(self, settings: Settings) -> Step:
        """A router, in the folder where the configuration's gateway looks for it."""
        artifact = artifact_of(settings)
        data = self._part("train")
        command = [
            *("train", "--config", str(self._options.config), "--data", str(data)),
            *_option("--validation", self.validation),
            *("--out", str(artifact), "--router", self._options.router),
            *(f"--encoder={each}" for each in self._options.encoders),
            *_option("--backend", settings.encoder.backend),
            *_option("--dtype", settings.encoder.dtype),
            *self._kind,
        ]

        def prepare() -> Sequence[str]:
            if not self._state.has_begun("train") and (artifact / artifacts.FILES[0]).exists():
                raise ArtifactError(
                    f"{artifact} has an artifact that this bootstrap did not make: move it away to "
                    "replace it, or calibrate it by `racer calibrate`"
                )
            return ("--resume",) if (artifact / "checkpoint").is_dir() else ()

        return Step(
            name="train",
            command=tuple(command),
            reads=(data, *self._validation_files),
            facts=_router_depends_on(settings),
            writes=_files_of(artifact),
            keep=trained,
            prepare=prepare,
            recover=lambda: _trained_before(artifact, data, settings),
        )

    def tune(self, settings: Settings) -> Step:
        """Score, alpha and vote that are best on the validation rows; too few choose none."""
        command = [
            *("tune", "--config", str(self._options.config)),
            *_option("--validation", self.validation),
            *(("--write",) if self._options.write else ()),
            *self._kind,
        ]

        def has_rows() -> Sequence[str]:
            if self.validation is None:
                raise RowsError(
                    "validation rows", ["none are left to tune on: all that do not train calibrate"]
                )
            return ()

        return Step(
            name="tune",
            command=tuple(command),
            reads=(*self._validation_files, *_files_of(artifact_of(settings))),
            facts=[*_router_depends_on(settings), _prices(settings), settings.routing.risk_target],
            keep=tuned,
            prepare=has_rows,
            tolerates=(RowsError, UpstreamError),
        )

    def evaluate(self, settings: Settings) -> Step:
        """Risk, set size and accuracy of the router on rows that it did not learn from."""
        artifact = artifact_of(settings)
        alpha = self._alpha(settings)
        command = [
            *("evaluate", "--artifact", str(artifact), "--data", str(self._rows)),
            *self._promise(settings),
            *(f"--alpha={each}" for each in SMALLER if each < alpha),
            *("--equality", settings.aggregation.equality.value),
            *(f"--price={name}={price}" for name, price in _prices(settings).items()),
            *self._kind,
        ]
        return Step(
            name="evaluate",
            command=tuple(command),
            reads=(self._rows, *_files_of(artifact)),
            facts=settings.aggregation.method,  # of the vote that is reported
            keep=partial(evaluated, method=settings.aggregation.method, alpha=alpha),
            tolerates=(RowsError, CalibrationError),
        )

    def calibrate(self, settings: Settings) -> Step:
        """The threshold at the gateway, active at once."""
        artifact = artifact_of(settings)
        command = [
            *("calibrate", str(self.calibration_rows), "--url", self._options.url),
            *self._promise(settings),
            *self._kind,
        ]

        def wait() -> Sequence[str]:
            wait_for_artifact(self._gateway, artifact, self._options.wait_s)
            return ()

        return Step(
            name="calibrate",
            command=tuple(command),
            reads=(self.calibration_rows, *_files_of(artifact)),
            keep=calibrated,
            prepare=wait,
            # Its store may be another one now.
            stands=lambda kept: kept["id"] in self._gateway.calibrations(),
        )

    @property
    def planned_shares(self) -> Mapping[str, float] | None:
        """The parts' shares that do not depend on labels; None: their number decides.

        Of validation rows, which then there must be, RouterDC is fitted and the vote of a package's
        router, and encoders are compared.
        """
        needs_validation = (
            self._options.router not in CROSS_FITTED or len(offered(self._options.encoders)) > 1
        )
        return self._options.shares or (TUNING_SHARES if needs_validation else None)

    def _chosen_shares(self, settings: Settings) -> Mapping[str, float]:
        """Those of the labelled rows, where no other step needs validation rows."""
        if self.planned_shares is not None:
            return self.planned_shares
        kind = None if self._options.kind is None else RowsKind(self._options.kind)
        rows = reader.read_rows(
            self._rows, settings.pool, kind=kind, text="conversation", takes_unlabelled=True
        )
        is_conditional = settings.routing.risk_target is RiskTarget.ANSWERABLE
        return shares_for(rows, lambda row: bool(row.correct) or not is_conditional)

    @property
    def validation(self) -> Path | None:
        """The validation rows; None where they calibrate."""
        return self._part("validation") if "validation" in self._shares else None

    @property
    def _validation_files(self) -> tuple[Path, ...]:
        return () if self.validation is None else (self.validation,)

    @property
    def _kind(self) -> tuple[str, ...]:
        return tuple(_option("--rows", self._options.kind))

    def _part(self, name: str) -> Path:
        return self._parts / f"{name}.jsonl"

    def _alpha(self, settings: Settings) -> float:
        given = self._options.alpha
        return settings.routing.alpha if given is None else given

    def _promise(self, settings: Settings) -> tuple[str, ...]:
        """The terms of the promise: the gateway may run with those from before ``--write``."""
        routing = settings.routing
        alpha, target = self._alpha(settings), routing.risk_target.value
        return ("--alpha", str(alpha), "--score", routing.score.value, "--risk-target", target)


def artifact_of(settings: Settings) -> Path:
    """The folder of the router, which :func:`app.tools.bootstrap.run.run` requires."""
    assert settings.artifact is not None
    return settings.artifact


def _files_of(artifact: Path) -> tuple[Path, ...]:
    return tuple(artifact / name for name in artifacts.FILES)


def _trained_before(artifact: Path, data: Path, settings: Settings) -> dict[str, Any] | None:
    """What is kept of a training that ended; None if it has something left to do."""
    if (artifact / "checkpoint").exists():
        return None
    try:
        found = artifacts.load(artifact, settings.pool)
    except ArtifactError:
        return None
    return {
        "artifact": str(artifact),
        "router": found.router.kind,
        "encoder": found.encoder.kind,
        "training_rows": len(with_labels(read_rows(data, settings, None), data.name)),
    }


def _graded(grade: str) -> tuple[str, ...]:
    """The option that says how answers are graded."""
    return ("--page",) if grade == PEOPLE else ("--grade", grade)


def _contents(shapes: ShapeOptions) -> list[Any]:
    """The contents of the files that the options name; none without these options."""
    return [shapes.systems, shapes.fields] if shapes.is_any else []


def _option(name: str, value: object) -> Iterable[str]:
    return () if value is None else (name, str(value))


def _counts(result: Mapping[str, int]) -> dict[str, int]:
    return {Path(name).stem: count for name, count in result.items()}


def _answers_depend_on(settings: Settings) -> list[Any]:
    """What candidates are sent for a question, and what of a text is an answer."""
    bodies = [
        [each.name, each.served_as, each.parameters, each.renames] for each in settings.candidates
    ]
    return [bodies, settings.aggregation.reasoning_markers]


def _router_depends_on(settings: Settings) -> list[Any]:
    """What a router is trained for, beside its rows."""
    return [
        *_answers_depend_on(settings),
        settings.aggregation.equality,
        settings.routing.text,
        settings.own_texts,
        leave_out_digest(settings.applications),
        settings.limits.query_chars,
    ]


def _prices(settings: Settings) -> dict[str, str]:
    """The prices of the candidates, as `racer evaluate` takes them."""
    given = {each.name: each.price for each in settings.candidates if each.price is not None}
    return {
        name: json.dumps(price.model_dump(exclude_defaults=True)) for name, price in given.items()
    }


# What a bootstrap keeps of each command's result, as JSON values: the figures of its report.

_EVIDENCE = (
    *("alpha", "score", "risk_target", "rows", "n", "feasible", "mean_size"),
    *("risk_q05", "risk_q95"),
)


def labelled(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of `racer label`: how many questions have a row."""
    return {name: result[name] for name in ("questions", "labelled")}


def trained(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of `racer train`: the artifact."""
    return {name: result[name] for name in ("artifact", "router", "encoder", "training_rows")}


def tuned(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of `racer tune`: the chosen setting, and whether the configuration has it."""
    chosen = {
        name: result["chosen"][name]
        for name in ("alpha", "score", "rule", "weight", "accuracy", "behind", "behind_se", "size")
    }
    return {"chosen": chosen, **{name: result[name] for name in ("diff", "settings", "written")}}


def evaluated(result: Evaluation, *, method: Method, alpha: float) -> dict[str, Any]:
    """Of `racer evaluate` at an alpha: means over splits, ``±`` of the risk over rows.

    ``accuracy`` is that of the majority's vote; null without recorded answers, as is ``gains``.
    """
    from racer_core.offline.evaluation_result import BEST, FULL_POOL, RISK

    setting = configured(result, alpha)
    controls = result.controls[setting.scope]
    risk = RISK[setting.risk_target]
    figures = {
        "risk": result.mean(setting, risk),
        "risk_half_width": 1.96 * result.se_rows(setting, risk),
        "size": result.mean(setting, "size"),
        "calls_saved": result.mean(setting, "calls_saved"),
        "accuracy": result.mean(setting, "accuracy_majority"),
        "best_single": _mean(controls.get(BEST)),
        "full_pool": _mean(controls.get(f"{FULL_POOL}majority")),
    }
    known = {name: None if math.isnan(each) else each for name, each in figures.items()}
    calibration, _, test = result.rows[setting.scope]
    return {
        **known,
        "splits": result.protocol.splits,
        "calibration": calibration,
        "test": test,
        "gains": gains(result, method, alpha),
    }


def calibrated(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of `racer calibrate`: the calibration with its evidence."""
    evidence = {name: result["evidence"].get(name) for name in _EVIDENCE}
    return {"id": result["id"], "active": result["active"], **evidence}


def _mean(runs: list[float] | None) -> float:
    return sum(runs) / len(runs) if runs else math.nan
