"""Root model of the configuration, and the checks across its sections."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from app.settings.access import ENVIRONMENT_KEYS, Access
from app.settings.aggregation import Aggregation, EvaluatorModel
from app.settings.answer_cache import AnswerCacheSettings
from app.settings.applications import (
    DEFAULT,
    Application,
    LeftOutPassage,
    membership_digest,
    problems,
)
from app.settings.base import Frozen, VariableName
from app.settings.budgets import Budget, scopes
from app.settings.candidates import Candidate, FleetSettings, Name
from app.settings.limits import Limits
from app.settings.monitoring import MonitoringSettings
from app.settings.remote_artifact import RemoteArtifact
from app.settings.routing import SET, WHOLE_POOL, EncoderSettings, Pool, Routing
from app.settings.same_answer import (
    ANSWERABLE,
    VOTE,
    SameAnswer,
    judge_name,
    with_sampling,
)
from app.settings.telemetry import TelemetrySettings
from racer_core.prices import MeanUsage, Price, expected_prices
from racer_core.records.conversation import RoutedText
from racer_core.records.left_out import LeftOut
from racer_core.types import Score

GroupBy = Literal["request", "key", "language", "application"]
AUTO = "auto"  # the model name that requests routing


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is not None or "password" in parse_qs(parts.query):
        raise ValueError("must hold no password: set $RACER_STORE_URL to the whole URL instead")
    return url


class Settings(Frozen):
    """The whole configuration, without secrets."""

    schema_version: Literal[1]
    """Version of the format of this file: 1."""
    host: str = "127.0.0.1"
    """Address to bind to; any address other than loopback needs a data key."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of the gateway; 0: any free one."""
    artifact: Path | None = None
    """Folder of the router that `racer train` writes, loaded once it is there; or the URL of a tar
    file of one, `https://HOST/PATH.tar.gz#sha256=DIGEST` or `s3://BUCKET/KEY#sha256=DIGEST`, which
    is fetched at the start. Null: no router, no store, and `routing.fallback` answers `auto`."""
    cache: Path = Path("cache")
    """Folder for what a gateway keeps on its machine: fetched artifacts, and of a PostgreSQL
    `store` the calibration that was active last, to start with while the database is away."""
    store: Annotated[str, AfterValidator(_without_password)] = "sqlite:///racer.db"
    """Database URL: a SQLite file, relative to this file, or PostgreSQL for several gateways; no
    password here."""
    store_env: VariableName = "RACER_STORE_URL"
    """Environment variable with a database URL, including its password, that replaces `store`."""
    candidates: Annotated[tuple[Candidate, ...], Field(min_length=1)]
    """The models of the pool."""
    currency: Annotated[str, Field(max_length=16, pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")] = "USD"
    """Name of the currency of all prices and costs."""
    budget: Budget | None = None
    """What all requests to the gateway together may cost; keys, applications and pools can have a
    budget of their own, too."""
    pools: dict[Name, Pool] = Field(
        default_factory=dict[str, Pool],
        # Otherwise an editor would accept a wrong name.
        json_schema_extra={"additionalProperties": False},
    )
    """Subsets of the pool by name; each is the model `auto/<name>`."""
    applications: dict[Name, Application] = Field(
        default_factory=dict[str, Application], json_schema_extra={"additionalProperties": False}
    )
    """Populations of requests by name, each with its own rows, threshold and terms; they replace
    `routing.group_by`."""
    embeddings: Name | None = None
    """Candidate that serves `/v1/embeddings`; null: the endpoint is off."""
    encoder: EncoderSettings = EncoderSettings()
    routing: Routing = Routing()
    same_answer: SameAnswer | None = None
    """The promise `same_answer`, for requests to `auto`; null: none of them unless it asks."""
    answer_cache: AnswerCacheSettings | None = None
    """The cache of answers to requests of no application; null: none are cached."""
    aggregation: Aggregation = Aggregation()
    fleet: FleetSettings = FleetSettings()
    access: Access = Access()
    limits: Limits = Limits()
    watching: MonitoringSettings = MonitoringSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    _remote_artifact: RemoteArtifact | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _artifact_is_a_folder(
        cls, values: object, validate: ModelWrapValidatorHandler[Self]
    ) -> Self:
        """Let `artifact` be the folder into which a URL is unpacked."""
        if not isinstance(values, dict):
            return validate(values)
        given = cast("dict[str, Any]", values)
        text, cache = given.get("artifact"), given.get("cache", cls.model_fields["cache"].default)
        remote = RemoteArtifact.parse(text) if isinstance(text, str) else None
        if remote is None or not isinstance(cache, str | Path):
            return validate(given)
        settings = validate({**given, "artifact": remote.folder(Path(cache))})
        settings._remote_artifact = remote
        return settings

    @model_validator(mode="before")
    @classmethod
    def _traffic_that_calibrates_is_sampled(cls, values: object) -> object:
        return with_sampling(values)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = self.pool
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"candidates: the name {twice!r} is duplicated")
        reserved = (AUTO, WHOLE_POOL, SET)
        if taken := [each for each in names if each in reserved or each.startswith(f"{AUTO}/")]:
            raise ValueError(f"candidates: the name `{taken[0]}` is reserved for the router")
        return self

    @model_validator(mode="after")
    def _prices_are_comparable(self) -> Self:
        unpriced = [candidate.name for candidate in self.candidates if candidate.price is None]
        if unpriced and len(unpriced) < len(self.candidates):
            raise ValueError(f"candidates: {unpriced[0]!r} has no price, but others have one")
        if unpriced and self.routing.score is Score.COVER_COST:
            raise ValueError("routing.score: cover_cost needs a price for every candidate")
        return self

    @model_validator(mode="after")
    def _budgets_have_prices(self) -> Self:
        if self.budgets and not self.exact_prices:
            scope = next(iter(self.budgets))
            raise ValueError(f"the budget of {scope} needs prices: set `candidates[].price`")
        return self

    @model_validator(mode="after")
    def _evaluators_are_known(self) -> Self:
        for name, each in self.raters.items():
            if each.candidate is not None and each.candidate not in self.pool:
                raise ValueError(
                    f"{name}: {each.candidate!r} is no candidate of the pool; "
                    "give `base_url` and `model` of another server"
                )
        return self

    @model_validator(mode="after")
    def _shadow_samples_fit_the_fan_out(self) -> Self:
        if (place := self._sampled_at()) and len(self.pool) > self.limits.fan_out:
            raise ValueError(
                f"{place}: a sample calls all {len(self.pool)} candidates, and "
                f"limits.fan_out allows {self.limits.fan_out}"
            )
        return self

    @model_validator(mode="after")
    def _candidates_are_known(self) -> Self:
        named = {"routing.observe": (self.routing.observe,), "embeddings": (self.embeddings,)}
        if self.routing.fallback != WHOLE_POOL:
            named["routing.fallback"] = (self.routing.fallback,)
        if self.routing.on_uncovered not in (SET, WHOLE_POOL):
            named["routing.on_uncovered"] = (self.routing.on_uncovered,)
        for name, each in self.applications.items():
            if each.on_uncovered not in (None, SET, WHOLE_POOL):
                named[f"applications.{name}.on_uncovered"] = (each.on_uncovered,)
        for place, each in self.same_answers.items():
            if each.reference == ANSWERABLE and ANSWERABLE in self.pool:
                raise ValueError(f"{place}: rename the candidate {ANSWERABLE!r}: it means labels")
            if each.reference not in (VOTE, ANSWERABLE):
                named[f"{place}.reference"] = (each.reference,)
        named |= {f"pools.{name}": pool.candidates for name, pool in self.pools.items()}
        named |= {f"access.keys.{key.name}": key.candidates or () for key in self.access.keys}
        for place, names in named.items():
            for name in names:
                if name is not None and name not in self.pool:
                    raise ValueError(f"{place}: {name!r} is no candidate of the pool")
        return self

    @model_validator(mode="after")
    def _applications_are_distinct(self) -> Self:
        keys = (*(key.name for key in self.access.keys), *ENVIRONMENT_KEYS)
        for problem in problems(self.applications, keys):
            raise ValueError(problem)
        if self.applications and "group_by" in self.routing.model_fields_set:
            raise ValueError("routing.group_by: applications are the groups; leave the setting out")
        return self

    @model_validator(mode="after")
    def _samples_have_a_router_and_decisions(self) -> Self:
        """Refuse a sampling rate without a store, which only a configured artifact opens."""
        place = self._sampled_at()
        if not self.has_store and place:
            raise ValueError(
                f"{place} needs a store: set `artifact` to where `racer train` will write the "
                "router, which need not exist yet"
            )
        if place and not self.watching.decisions:
            raise ValueError(
                f"{place} needs `watching.decisions: true`: only stored decisions can be judged"
            )
        return self

    @model_validator(mode="after")
    def _checkers_have_samples(self) -> Self:
        """Refuse a checker whose application is not sampled: it would have no effect."""
        rates = dict.fromkeys(self.applications, self.watching.shadow_rate) | self.shadow_rates
        for name, each in self.applications.items():
            if each.checker is not None and not rates[name]:
                raise ValueError(
                    f"applications.{name}.checker: it labels sampled requests, and none are "
                    f"sampled: set `applications.{name}.shadow_rate`"
                )
        return self

    def _sampled_at(self) -> str | None:
        """The setting that turns the shadow sample on; None where none does."""
        if self.watching.shadow_rate > 0.0:
            return "watching.shadow_rate"
        return next(
            (f"applications.{n}.shadow_rate" for n, rate in self.shadow_rates.items() if rate), None
        )

    @property
    def samples_traffic(self) -> bool:
        """Whether any application's requests are sampled."""
        return self._sampled_at() is not None

    @property
    def shadow_rates(self) -> dict[str, float]:
        """The sampling rates of applications with one of their own."""
        return {
            name: each.shadow_rate
            for name, each in self.applications.items()
            if each.shadow_rate is not None
        }

    @property
    def remote_artifact(self) -> RemoteArtifact | None:
        """Where the artifact is fetched from; None: it is a folder."""
        return self._remote_artifact

    @property
    def has_store(self) -> bool:
        """Whether a store is opened: for a router, the promise `same_answer` or a budget."""
        return self.artifact is not None or self.promises_same_answers or bool(self.budgets)

    @property
    def budgets(self) -> dict[str, Budget]:
        """The budgets by their scope, such as ``all`` or ``key:NAME``."""
        return scopes(
            gateway=self.budget,
            keys={each.name: each.budget for each in self.access.keys},
            applications={name: each.budget for name, each in self.applications.items()},
            pools={name: each.budget for name, each in self.pools.items()},
        )

    @property
    def fallback(self) -> str:
        """What answers `auto` until a calibration is active: a candidate, or ``WHOLE_POOL``."""
        return self.routing.fallback or self.pool[0]

    @property
    def group_by(self) -> GroupBy:
        """What determines a request's group."""
        return "application" if self.applications else self.routing.group_by

    @property
    def grouping(self) -> str:
        """What determines a request's group, with the digest of who belongs to each application.

        Rows under another grouping are of other populations.
        """
        members = (
            f" {membership_digest(self.applications, self.routing.text)}"
            if self.applications
            else ""
        )
        return self.group_by + members

    def text_of(self, application: str | None) -> RoutedText:
        """What the router reads of an application's requests and rows."""
        own = self.applications.get(application or DEFAULT)
        return self.routing.text if own is None or own.text is None else own.text

    def leave_out_of(self, application: str | None) -> tuple[LeftOutPassage, ...]:
        """What the router does not read in an application's requests and rows."""
        own = self.applications.get(application or DEFAULT)
        return () if own is None else own.leave_out

    @property
    def promises_same_answers(self) -> bool:
        """Whether any application's requests have the promise `same_answer` by default."""
        return bool(self.same_answers)

    def same_answer_of(self, application: str | None) -> SameAnswer | None:
        """The promise `same_answer` that an application's requests have by default."""
        own = self.applications.get(application or DEFAULT)
        return self.same_answer if own is None or own.same_answer is None else own.same_answer

    def evidence_at(self, application: str | None) -> str | None:
        """The section whose checker an application's answers have; None: they have none."""
        own = f"applications.{application or DEFAULT}.same_answer"
        place = own if own in self.same_answers else "same_answer"
        section = self.same_answers.get(place)
        return None if section is None or section.evidence is None else place

    @property
    def raters(self) -> dict[str, EvaluatorModel]:
        """Evaluators and judges, by their names in messages and metrics."""
        judges = {
            judge_name(place): rater
            for place, section in self.same_answers.items()
            if section.evidence is not None and (rater := section.evidence.rater) is not None
        }
        return self.aggregation.raters | judges

    @property
    def same_answers(self) -> dict[str, SameAnswer]:
        """The sections of the promise `same_answer`, by their place."""
        sections = {"same_answer": self.same_answer} | {
            f"applications.{name}.same_answer": each.same_answer
            for name, each in self.applications.items()
        }
        return {place: each for place, each in sections.items() if each is not None}

    @property
    def answer_caches(self) -> dict[str, AnswerCacheSettings]:
        """The answer caches that are on, by application."""
        sections = {DEFAULT: self.answer_cache} | {
            name: each.answer_cache for name, each in self.applications.items()
        }
        return {name: each for name, each in sections.items() if each is not None}

    @property
    def own_texts(self) -> dict[str, RoutedText]:
        """What the router reads of the applications that have a text of their own."""
        return {name: each.text for name, each in self.applications.items() if each.text}

    @property
    def leave_outs(self) -> dict[str, tuple[LeftOut, ...]]:
        """What the router does not read, of the applications that say so."""
        return {
            name: tuple(LeftOut(passage.begin, passage.end) for passage in each.leave_out)
            for name, each in self.applications.items()
            if each.leave_out
        }

    @property
    def drawn_applications(self) -> tuple[str, ...]:
        """The applications whose rows are drawn from their traffic."""
        return tuple(name for name, each in self.applications.items() if each.premise == "drawn")

    @property
    def together_applications(self) -> tuple[str, ...]:
        """The applications whose first and later turns are one population."""
        return tuple(name for name, each in self.applications.items() if each.turns == "together")

    @property
    def exact_prices(self) -> dict[str, Price]:
        """The price of every candidate; empty if they have none."""
        return {each.name: each.price.exact for each in self.candidates if each.price is not None}

    def call_prices(self, usage: Mapping[str, MeanUsage]) -> dict[str, float] | None:
        """Expected price of a call of every candidate.

        None if they have no prices, or if one depends on what calls use and that is not known.

        Args:
            usage: What calls use on average, by candidate.
        """
        found = expected_prices(self.exact_prices, usage)
        known = {name: price for name, price in found.items() if price is not None}
        return known if known and len(known) == len(found) else None

    @property
    def pool(self) -> tuple[str, ...]:
        """Names of the candidates in order."""
        return tuple(candidate.name for candidate in self.candidates)

    @property
    def models(self) -> tuple[str, ...]:
        """Model names for clients: the router, named pools, candidates."""
        return (AUTO, *(f"{AUTO}/{name}" for name in self.pools), *self.pool)
