"""Which settings a running gateway takes over, and in which settings two configurations differ.

:func:`all_settings` is the table of all of them: the reference shows it, and a test has a row for
the effect of each that a reload changes.

A setting that is not listed needs a restart: it belongs to a socket, a process, the store, or to
what a calibration's rows were labelled and grouped under. A new setting needs one until it is
listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.settings.access import Key
from app.settings.candidates import Candidate
from app.settings.model import Settings

Place = tuple[str, ...]  # the names that lead to a setting; a name may contain dots

ANY: Final = "*"  # any name in a place
# With all settings below them. What candidates are sent, who belongs to which application, and how
# long sampled requests may take is not here: rows were made under it.
RELOADED: Final[tuple[Place, ...]] = tuple(
    tuple(place.split("."))
    for place in (
        "access.failures_per_minute",
        "access.hosts",
        "access.keys",
        "aggregation.equality",
        "applications.*.alpha",
        "applications.*.budget",
        "applications.*.on_uncovered",
        "applications.*.shadow_rate",
        "budget",
        "candidates.*.api_key_env",
        "candidates.*.base_url",
        "candidates.*.base_urls",
        "candidates.*.capabilities",
        "candidates.*.concurrency",
        "candidates.*.headers",
        "candidates.*.key_header",
        "candidates.*.price",
        "candidates.*.timeout_s",
        "candidates.*.verify_tls",
        "embeddings",
        "examples",
        "limits.body_buffer_bytes",
        "limits.body_bytes",
        "limits.choices",
        "limits.comment_every_s",
        "limits.connections_per_address",
        "limits.decisions_kept",
        "limits.fan_out",
        "limits.in_flight",
        "limits.max_tokens",
        "limits.messages",
        "limits.route_timeout_s",
        "limits.tools",
        "limits.upload_bytes",
        "pools",
        "routing.alpha",
        "routing.fallback",
        "routing.levels",
        "routing.observe",
        "routing.on_abstain",
        "routing.on_infeasible",
        "routing.on_uncovered",
        "routing.risk_target",
        "routing.score",
        "routing.session_ttl_s",
        "telemetry.log_prompts",
        "watching.expire_after_days",
        "watching.feedback",
        "watching.keep_days",
        "watching.keep_rows",
        "watching.shadow_calls_per_day",
        "watching.shadow_rate",
        "watching.store_queries",
    )
)


def is_reloaded(place: Place) -> bool:
    """Whether a running gateway takes this setting over."""
    return any(
        len(listed) <= len(place)
        and all(
            name in (ANY, given) for name, given in zip(listed, place[: len(listed)], strict=True)
        )
        for listed in RELOADED
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table of all settings.

    Attributes:
        name: Its place as documents write it, such as ``candidates[].price.input``.
        field: Its default and its description.
    """

    name: str
    field: FieldInfo

    @property
    def place(self) -> Place:
        """Its place, with ``ANY`` for the names in it."""
        return tuple(self.name.replace("[]", f".{ANY}").replace("<name>", ANY).split("."))

    @property
    def is_reloaded(self) -> bool:
        """Whether a reload changes it; else a restart does."""
        return is_reloaded(self.place)


def all_settings(
    model: type[BaseModel] = Settings, prefix: str = "", seen: frozenset[type] = frozenset()
) -> Iterator[Setting]:
    """Every setting by its place; a section that occurs twice is expanded once.

    A section of the top level is expanded there alone.
    """
    if prefix:
        top = (_section(field.annotation)[0] for field in Settings.model_fields.values())
        seen |= {section for section in top if section is not None}
    for name, field in model.model_fields.items():
        section, mark = _section(field.annotation)
        if section is None or section in seen:
            yield Setting(f"{prefix}{name}", field)
        else:
            yield from all_settings(section, f"{prefix}{name}{mark}.", seen)
            seen |= {section}


def _section(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Return the model that a field holds, and the mark of a list or a mapping of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    marks: dict[Any, str] = {tuple: "[]", dict: ".<name>"}
    for inner in get_args(annotation):
        model, _ = _section(inner)
        if model is not None:
            return model, marks.get(get_origin(annotation), "")
    return None, ""


def differences(before: Settings, after: Settings) -> list[Place]:
    """The settings in which two configurations differ; values, which may be secret, are left out.

    Candidates and API keys are found by their names. Where only their order differs, it is the
    whole list.
    """
    return list(_differences(before, after, ()))


def _differences(before: object, after: object, place: Place) -> Iterator[Place]:
    one, other = _parts(before), _parts(after)
    if one is None or other is None:
        if before != after:
            yield place
        return
    found = [
        each
        for name in {**one, **other}
        for each in _differences(one.get(name), other.get(name), (*place, name))
    ]
    yield from found
    # A section has no order, but attributes beside its settings: where an artifact is fetched from.
    if not found and not isinstance(before, BaseModel) and before != after:
        yield place


def _parts(value: object) -> Mapping[str, object] | None:
    """What a section, or a list or mapping of sections, consists of, by name."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, dict):
        by_name = cast("dict[str, object]", value)
        return by_name if all(isinstance(each, BaseModel) for each in by_name.values()) else None
    if isinstance(value, tuple):
        entries = cast("tuple[object, ...]", value)
        named = [each for each in entries if isinstance(each, Candidate | Key)]
        return {each.name: each for each in named} if len(named) == len(entries) else None
    return None
