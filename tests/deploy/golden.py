"""What differs between two sets of manifests, a line for each field.

`python -m tests.deploy.golden` writes the files that `test_helm.py` compares with. Labels are left
out: which pods a selector finds is a test of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from racer_core import __version__
from tests.deploy import bootstrap, plain
from tests.deploy.chart import USUAL, VARIANTS, Manifest, merged, render

FOLDER = Path(__file__).with_name("golden")
LEFT_OUT = {"apiVersion", "groups", "kind", "labels", "matchLabels", "namespace", "racer/config"}
LEFT_OUT |= {"selector"}
CONFIGURATION = {
    "metadata": {"name": "gateway"},
    "data": {"racer.yaml": (plain.FOLDER / "racer.yaml").read_text(encoding="utf-8")},
}
JOBS = merged(VARIANTS["bootstrap"], {"recalibration": {"schedule": "0 3 * * *"}})
SIBLING = "candidate-a"  # what servers of other names are compared with


def _fields(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """The scalars below a place; items of lists stand under their name, flag or ports."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if key == "racer.yaml":
                inner = yaml.safe_load(inner)
            if key not in LEFT_OUT:
                yield from _fields(inner, f"{place}.{key}")
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _fields(inner, f"{place}[{_key(inner, number)}]")
    else:
        yield place, str(value).replace("demo-", "").replace(__version__, "VERSION")


def _key(item: Any, number: int) -> str:
    if isinstance(item, dict):
        ports = " ".join(str(each["port"]) for each in item.get("ports", ()) if "port" in each)
        return item.get("name") or ports or str(number)
    flag, equals, _ = str(item).partition("=")
    return flag if equals and flag.startswith("--") else str(number)


def _by_title(manifests: Iterable[Manifest]) -> dict[str, dict[str, str]]:
    titles = {plain.title(each).replace("-demo-", "-"): each for each in manifests}
    return {title: dict(_fields(each, "")) for title, each in titles.items()}


def difference(
    one: Iterable[Manifest], other: Iterable[Manifest], known: Collection[str] = ()
) -> str:
    """What the one has and the other has not, and the other way round.

    Of new objects that are ``known`` from another comparison, the title alone.
    """
    before, after = _by_title(one), _by_title(other)
    lines: list[str] = []
    for title in sorted(before.keys() | after.keys()):
        kind, _, name = title.partition("-")
        sibling = f"{kind}-{SIBLING}"
        old, new = before.get(title), after.get(title)
        if new is None:
            lines.append(f"- {title}")
            continue
        if old is None:
            lines.append(f"+ {title}")
            if title in known:
                continue
            old = {k: v.replace(SIBLING, name) for k, v in before.get(sibling, {}).items()}
        lines += (
            f"{sign} {title}{place}: {values[place]}"
            for place in sorted(old.keys() | new.keys())
            for sign, values in (("-", old), ("+", new))
            if old.get(place) != new.get(place) and place in values
        )
    return "".join(f"{line}\n" for line in lines)


def differences() -> dict[str, str]:
    """The chart with all its jobs against the plain manifests, and its variants against it."""
    every = [*plain.MANIFESTS, *bootstrap.MANIFESTS, {"kind": "ConfigMap", **CONFIGURATION}]
    usual = render(USUAL)
    others = {name: values for name, values in VARIANTS.items() if name != "usual"}
    return {
        "plain": difference(every, render(JOBS)),
        **{
            name: difference(usual, render(values), known=_by_title(every))
            for name, values in others.items()
        },
    }


def file_of(name: str) -> Path:
    """Where the difference of this name is kept."""
    return FOLDER / f"{name.replace(' ', '_')}.txt"


if __name__ == "__main__":
    for name, text in differences().items():
        file_of(name).write_text(text, encoding="utf-8")
