"""The configuration: one YAML file, checked in full at start.

The only place that reads the environment. Secrets are named in the file and read from there; they
never stand in the file.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit

import yaml
import yaml.resolver
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from app.errors import SettingsError
from app.validation import problems
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.vote import OPTIONS, Method, Weight
from racer_core.records.row import MAX_QUERY_CHARS
from racer_core.types import RiskTarget, Score

AUTO = "auto"  # the model name that asks for routing
MIN_KEY_CHARS = 16


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _http_url(url: str) -> str:
    wanted = "must be an http(s) URL such as http://host:8000/v1"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as exc:  # a port that is none, an unclosed bracket
        raise ValueError(wanted) from exc
    if not usable or parts.query or parts.fragment or any(char.isspace() for char in url):
        raise ValueError(wanted)
    return url.rstrip("/")


def _sendable(parameters: dict[str, Any]) -> dict[str, Any]:
    if ours := {"model", "messages", "stream"} & set(parameters):
        raise ValueError(f"{min(ours)!r} is not a decoding parameter")
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"cannot be sent as JSON: {exc}") from exc
    return parameters


class Candidate(_Frozen):
    """One model of the pool and where it is served."""

    # What fits into a header, a path and a comma-separated list alike.
    name: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]
    base_url: Annotated[str, AfterValidator(_http_url)]
    model: str | None = None  # its name at the server; None: the same
    api_key_env: str | None = None
    # How it was labelled; used where the client says nothing.
    parameters: Annotated[dict[str, Any], AfterValidator(_sendable)] = {}
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    price: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = (
        None  # of a call on average, in any one unit
    )


class Encoder(_Frozen):
    """Must match the artifact; None takes what the artifact remembers."""

    backend: Literal["cpu", "cuda"] | None = None
    dtype: Literal["float32", "bfloat16"] | None = None


class Routing(_Frozen):
    """Defaults for requests that do not say otherwise."""

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.1
    score: Score = Score.COVER
    risk_target: RiskTarget = RiskTarget.ANSWERABLE
    on_abstain: Literal["refuse", "strongest", "error"] = "refuse"
    on_infeasible: Literal["trivial", "reject"] = "trivial"


class EvaluatorModel(_Frozen):
    """Who rates answers: one of the candidates, or a model at a server of its own."""

    candidate: str | None = None
    base_url: Annotated[str, AfterValidator(_http_url)] | None = None
    model: str | None = None
    api_key_env: str | None = None
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0  # for all ratings of a request
    prompt_chars: Annotated[int, Field(ge=256, le=100_000)] = 4096  # within its context

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        server = (self.base_url, self.model)
        own = any(field is not None for field in (*server, self.api_key_env))
        if (self.candidate is not None and own) or (self.candidate is None and None in server):
            raise ValueError("give either `candidate`, or `base_url` and `model`")
        return self


class Aggregation(_Frozen):
    """How answers are merged."""

    method: Method = Method.MAJORITY
    equality: Equality = Equality.EXACT
    weight: Weight = Weight.ROUTER  # of `weighted`
    temperature: Annotated[float, Field(gt=0)] = 1.0  # of `weighted`
    options: Annotated[int, Field(ge=2)] = OPTIONS  # of `log_odds`: answers a question can have
    evaluator: EvaluatorModel | None = None
    evaluators: dict[str, EvaluatorModel] = {}  # by group, instead of `evaluator`

    @model_validator(mode="after")
    def _evaluators_are_used(self) -> Self:
        if self.weight is not Weight.ROUTER and self.method is not Method.WEIGHTED:
            raise ValueError(f"`weight: {self.weight}` needs `method: weighted`")
        if self.weight is Weight.ROUTER and self.raters:
            raise ValueError("an evaluator is asked with `weight: verbal` or `weight: p_true` only")
        if self.weight is not Weight.ROUTER and self.evaluator is None:
            raise ValueError(f"`weight: {self.weight}` needs an `evaluator` that rates the answers")
        return self

    @property
    def raters(self) -> dict[str, EvaluatorModel]:
        """Every evaluator by its name in messages and metrics, which no candidate can have."""
        common = {} if self.evaluator is None else {rater_name(None): self.evaluator}
        return common | {rater_name(group): each for group, each in self.evaluators.items()}


def rater_name(group: str | None) -> str:
    """The common evaluator, or a group's own, in messages and metrics."""
    return "the evaluator" if group is None else f"the evaluator of {group}"


class Limits(_Frozen):
    """Every limit in one place."""

    body_bytes: Annotated[int, Field(gt=0)] = 4 * 2**20
    upload_bytes: Annotated[int, Field(gt=0)] = 256 * 2**20
    answer_bytes: Annotated[int, Field(gt=0)] = 8 * 2**20
    query_chars: Annotated[int, Field(gt=0)] = MAX_QUERY_CHARS
    queue: Annotated[int, Field(gt=0)] = 256  # queries that wait for the router
    batch: Annotated[int, Field(gt=0)] = 32
    connections: Annotated[int, Field(gt=0)] = 512
    route_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    comment_every_s: Annotated[float, Field(gt=0)] = 5.0  # keeps a waiting stream alive


class Settings(_Frozen):
    """What the gateway is started with; everything but secrets."""

    schema_version: Literal[1]
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    artifact: Path
    store: str = "sqlite:///racer.db"
    data_key_env: str = "RACER_DATA_KEY"
    admin_key_env: str = "RACER_ADMIN_KEY"
    candidates: Annotated[tuple[Candidate, ...], Field(min_length=1)]
    encoder: Encoder = Encoder()
    routing: Routing = Routing()
    aggregation: Aggregation = Aggregation()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = self.pool
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"candidates: the name {twice!r} stands twice")
        if AUTO in names:
            raise ValueError(f"candidates: `{AUTO}` is the name of the router itself")
        return self

    @model_validator(mode="after")
    def _prices_are_comparable(self) -> Self:
        unpriced = [candidate.name for candidate in self.candidates if candidate.price is None]
        if unpriced and len(unpriced) < len(self.candidates):
            raise ValueError(f"candidates: {unpriced[0]!r} has no price, and others have one")
        if unpriced and self.routing.score is Score.COVER_COST:
            raise ValueError("routing.score: cover_cost needs a price for every candidate")
        return self

    @model_validator(mode="after")
    def _evaluators_are_known(self) -> Self:
        for each in self.aggregation.raters.values():
            if each.candidate is not None and each.candidate not in self.pool:
                raise ValueError(
                    f"aggregation: the evaluator {each.candidate!r} is no candidate of the pool; "
                    "give `base_url` and `model` of another server"
                )
        return self

    @property
    def prices(self) -> tuple[float, ...] | None:
        """The candidates' prices in order; None when they have none."""
        prices = tuple(each.price for each in self.candidates if each.price is not None)
        return prices or None

    @property
    def pool(self) -> tuple[str, ...]:
        """The candidates' names in order."""
        return tuple(candidate.name for candidate in self.candidates)


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the environment holds under the names that the configuration gives."""

    data_key: SecretStr | None = None
    admin_key: SecretStr | None = None
    # By name: candidates, and evaluators with a server of their own.
    candidate_keys: Mapping[str, SecretStr] = field(default_factory=dict[str, SecretStr])


def load(
    path: Path, environment: Mapping[str, str] | None = None, **overrides: Any
) -> tuple[Settings, Secrets]:
    """Read and check a configuration file; relative paths in it are relative to it.

    Args:
        path: The YAML file.
        environment: Where secrets are; None takes the process's own.
        overrides: Fields that the command line sets.

    Raises:
        SettingsError: One sentence that names the file, the field and what is wrong.
    """
    try:
        values = _parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsError(f"{path}: cannot be read ({exc.strerror})") from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # a bad date, endless nesting
        raise SettingsError(f"{path}: not YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected fields such as `schema_version: 1`")
    try:
        settings = Settings.model_validate({**values, **overrides})
    except ValidationError as exc:
        told = [sentence for _, sentence in problems(exc)]
        raise SettingsError(f"{path}: {'; '.join(told)}") from exc
    secrets = _secrets(settings, os.environ if environment is None else environment)
    return _absolute_paths(settings, path.resolve().parent), secrets


def _secrets(settings: Settings, environment: Mapping[str, str]) -> Secrets:
    """Read the keys, refusing weak ones and a door left open."""
    data_key = _key(environment, settings.data_key_env)
    admin_key = _key(environment, settings.admin_key_env)
    if data_key is not None and data_key == admin_key:
        raise SettingsError("the admin key must differ from the data key")
    if data_key is None and not _is_loopback(settings.host):
        raise SettingsError(
            f"host {settings.host} is reachable from outside, so a data key is required: "
            f"set ${settings.data_key_env}, or bind to 127.0.0.1"
        )
    callees = {candidate.name: candidate for candidate in settings.candidates}
    wanted = {
        name: callee.api_key_env
        for name, callee in (callees | settings.aggregation.raters).items()
        if callee.api_key_env is not None
    }
    for name, variable in wanted.items():
        if not environment.get(variable):
            raise SettingsError(f"${variable} is not set: the api_key_env of {name} names it")
    keys = {name: SecretStr(environment[variable]) for name, variable in wanted.items()}
    return Secrets(data_key, admin_key, keys)


def _key(environment: Mapping[str, str], variable: str) -> SecretStr | None:
    value = environment.get(variable, "")
    if not value:
        return None
    if not value.isascii() or not value.isprintable() or " " in value:
        raise SettingsError(
            f"${variable} must be printable ASCII without spaces or line ends: no client could "
            "send it in a header"
        )
    if len(value) < MIN_KEY_CHARS:
        raise SettingsError(
            f"${variable} has fewer than {MIN_KEY_CHARS} characters: take a random key, "
            "for example `openssl rand -hex 24`"
        )
    return SecretStr(value)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _absolute_paths(settings: Settings, folder: Path) -> Settings:
    store = settings.store
    prefix = "sqlite:///"
    if store.startswith(prefix) and not store.startswith(f"{prefix}/") and store != prefix:
        store = f"{prefix}{folder / store.removeprefix(prefix)}"
    return settings.model_copy(update={"artifact": folder / settings.artifact, "store": store})


def _parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """YAML without the last word winning silently: a key that stands twice is an error."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
    keys: list[object] = [loader.construct_object(key, deep=True) for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise yaml.YAMLError(f"{twice[0]!r} stands twice (line {node.start_mark.line + 1} on)")
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
