"""The default candidates' command lines, read by vLLM's own parser: no server, no model."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests.deploy import compose, plain
from tests.deploy.chart import CHART, render, values_of

from .conftest import PYTHON
from .servers import ENVIRONMENT

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

# What `vllm serve` does before it loads a model: it parses, validates, and looks parsers up.
_PROGRAM = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.reasoning import ReasoningParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

def parsed(words):
    parser = FlexibleArgumentParser()
    serve = ServeSubcommand()
    serve.subparser_init(parser.add_subparsers(dest="subparser"))
    try:
        args = parser.parse_args(words)
        serve.validate(args)
        if args.reasoning_parser:
            ReasoningParserManager.get_reasoning_parser(args.reasoning_parser)
    except (SystemExit, Exception) as exc:
        return {"error": f"{type(exc).__name__}: {exc}"}
    return {
        "model": args.model_tag,
        "name": args.served_model_name,
        "port": args.port,
        "length": args.max_model_len,
        "memory": args.gpu_memory_utilization,
        "reasoning": args.reasoning_parser,
        "template": args.default_chat_template_kwargs,
    }

print(json.dumps([parsed(words) for words in json.load(sys.stdin)]))
"""


def read_by_vllm(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What vLLM makes of commands without the program's name, or the `error` of each."""
    done = subprocess.run(
        [os.environ[PYTHON], "-c", _PROGRAM],
        input=json.dumps([list(each) for each in commands]),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env=os.environ | ENVIRONMENT,
    )
    return json.loads(done.stdout.splitlines()[-1])


def compose_commands() -> list[list[str]]:
    """Entry point and command of each candidate, with the defaults of variables."""
    services = compose.CANDIDATES.values()
    return [
        [*each["entrypoint"], *shlex.split(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", each["command"]))]
        for each in services
    ]


def manifest_commands(pods: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Command and arguments of each candidate's container."""
    runs = [run for pod in pods for run in pod["containers"] if run["name"] == "vllm"]
    return [[*run["command"], *run["args"]] for run in runs]


def chart_pods() -> list[dict[str, Any]]:
    """Pods of the chart with its own values."""
    manifests = render(values_of(CHART / "values.yaml") | {"existingSecret": "s"})
    return [each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "Deployment"]


PLACES = {
    "compose": compose_commands,
    "manifests": lambda: manifest_commands([plain.PODS[name] for name in plain.CANDIDATES]),
    "chart": lambda: manifest_commands(chart_pods()),
}
# The control: vLLM knows neither this flag nor this parser.
WRONG = [
    ["vllm", "serve", "m", "--reasoning-parsers=qwen3"],
    ["vllm", "serve", "m", "--reasoning-parser=qwen33"],
]


@pytest.fixture(scope="module")
def results() -> dict[str, list[dict[str, Any]]]:
    """What vLLM makes of the commands of each place; one process, as its import takes long."""
    commands = {place: commands_of() for place, commands_of in PLACES.items()} | {"wrong": WRONG}
    assert {each[0] for one in commands.values() for each in one} == {"vllm"}
    found = iter(read_by_vllm([each[1:] for one in commands.values() for each in one]))
    return {place: [next(found) for _ in one] for place, one in commands.items()}


@pytest.mark.parametrize("place", PLACES)
def test_vllm_knows_every_flag_of_the_default_models(
    results: dict[str, list[dict[str, Any]]], place: str
) -> None:
    """Red when vLLM renames a flag or a reasoning parser, or reads another value."""
    assert results[place] == [
        {
            "model": model,
            "name": [name],
            "port": 8000,
            "length": 8192,
            "memory": 0.9,
            "reasoning": parser,
            "template": template,
        }
        for model, name, parser, template in (
            ("Qwen/Qwen3-8B", "candidate-a", "qwen3", {"enable_thinking": False}),
            ("ibm-granite/granite-3.3-8b-instruct", "candidate-b", "", None),
        )
    ]


def test_an_unknown_flag_or_parser_is_an_error(results: dict[str, list[dict[str, Any]]]) -> None:
    """The control of the test above."""
    flag, parser = results["wrong"]
    assert flag.keys() == parser.keys() == {"error"}
    assert "qwen33" in parser["error"]
