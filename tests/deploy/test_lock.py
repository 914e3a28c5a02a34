"""requirements.lock holds all that serving needs, and the scripts of a release say what they do."""

import importlib.metadata as metadata
import json
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from .constraints import canonical, pins
from .dockerfile import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
LINE = re.compile(
    r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)
LOCKED = {found[1]: found[2] for found in LINE.finditer(LOCK)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("label", "otel", "parquet", "postgres")  # what a configuration or an upload can ask for
AUDIT = ROOT / "deploy" / "release" / "audit.py"


def test_every_line_has_a_version_and_hashes():
    """Fails when a part of the file matches no pattern."""
    rest = LINE.sub("", LOCK).strip()
    assert all(line.startswith("#") for line in rest.splitlines())
    assert len(LOCKED) > 60


def test_versions_are_those_of_the_constraints():
    """`make lock` writes it anew. Red when constraints.txt moves alone."""
    pinned = pins()
    assert {name: v for name, v in LOCKED.items() if pinned.get(canonical(name)) != v} == {}


def test_it_is_closed_under_what_packages_require():
    """Red when something that a gateway may need is missing, torch aside."""
    wanted = [*PROJECT["dependencies"]]
    wanted += [line for name in EXTRAS for line in PROJECT["optional-dependencies"][name]]
    todo = [Requirement(line) for line in wanted]
    seen = set()
    while todo:
        each = todo.pop()
        name = canonical(each.name)
        if name == "torch" or (name, frozenset(each.extras)) in seen:
            continue
        seen.add((name, frozenset(each.extras)))
        assert name in {canonical(there) for there in LOCKED}, each
        todo += required(each)


def required(package):
    """What a package needs here, with the extras that are asked of it."""
    extras = ["", *package.extras]
    for each in map(Requirement, metadata.requires(package.name) or ()):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
            yield each


def audited(report):
    """What audit.py says of a report of pip-audit's: exit code and text."""
    done = subprocess.run(
        [sys.executable, AUDIT], input=report, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def package(name, *holes, **more):
    """One package of a report."""
    vulns = [{"id": hole, "fix_versions": ["2.0"], "description": ""} for hole in holes]
    return {"name": name, "version": "1.0"} | (more or {"vulns": vulns})


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([package("a"), package("b")], 0, ["0 known vulnerabilities in 2 of 2"]),
        ([package("a", "CVE-1"), package("b")], 1, ["a 1.0: CVE-1, fixed in 2.0", "1 known"]),
        ([package("a", skip_reason="?")], 0, ["SKIPPED", "none of 1"]),
        ([package("a"), package("b", skip_reason="?")], 0, ["in 1 of 2", "1 could not be asked"]),
    ],
    ids=["clean", "hole", "nothing", "part"],
)
def test_an_audit_says_what_it_knows(packages, code, words):
    """Never clean where no package was audited."""
    ended, text = audited(json.dumps({"dependencies": packages, "fixes": []}))
    assert ended == code
    assert all(word in text for word in words), text
    assert ("SKIPPED" in text) == ("SKIPPED" in words)


def test_an_audit_without_an_answer_was_skipped():
    """pip-audit writes nothing when its service cannot be reached."""
    assert audited("") == (0, "pip-audit: SKIPPED, its service cannot be reached\n")
