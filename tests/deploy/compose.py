"""The files of Docker Compose, as the tests read them."""

from __future__ import annotations

import re
import shlex

import yaml

from app.settings import Settings
from tests.deploy import dockerfile
from tests.deploy.dockerfile import ROOT

FOLDER = ROOT / "deploy" / "compose"
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
CUDA = (FOLDER / "cuda.yml").read_text(encoding="utf-8")
SERVICES = yaml.safe_load(TEXT)["services"]
GATEWAY = SERVICES["gateway"]
MONITORING = {name: service for name, service in SERVICES.items() if "profiles" in service}
CANDIDATES = {n: s for n, s in SERVICES.items() if n != "gateway" and n not in MONITORING}
CONFIG = yaml.safe_load((FOLDER / "racer.yaml").read_text(encoding="utf-8"))
RUNTIME = dockerfile.read()["runtime"]
PORT = Settings.model_fields["port"].default


def model(service):
    """The variable with a candidate's model, and its default: the model with the flags it needs."""
    return re.match(r"\$\{(\w+):-([^}]+)\} ", service["command"]).groups()


def flags(service):
    """The vLLM options that every candidate has."""
    words = shlex.split(re.sub(r"^\$\{[^}]+\} ", "", service["command"]))
    return dict(word.split("=", 1) for word in words)


def words(command):
    """A command as compose's versions print it: a text or a list."""
    return shlex.split(command) if isinstance(command, str) else command


def mounts(service=GATEWAY):
    """Where a service's folders and files come from, by target."""
    found = {}
    for each in service["volumes"]:
        if isinstance(each, str):
            parts = re.fullmatch(r"(?P<source>\$\{.+\}|\w+):(?P<target>[^:]+)(?P<ro>:ro)?", each)
            each = {"type": "volume", **parts.groupdict(), "read_only": parts["ro"] is not None}
        found[each["target"]] = each
    return found
