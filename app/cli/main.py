"""Entry point of the ``racer`` command: its subcommands, and exit codes for expected errors.

Exit codes: 0 success; 1 the data or the request was refused, or another version of the program
wrote the store or the artifact; 2 usage, configuration, or an artifact that does not fit; 3 the
gateway, a candidate or an evaluator cannot be reached; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections import UserDict
from importlib import import_module
from typing import Any, Final

import click

from app.cli.console import err
from app.errors import GatewayUnreachable, SettingsError, StoreSchemaError, UpstreamError
from racer_core import __version__
from racer_core.errors import ArtifactError, ArtifactSchemaError, RacerError

# What `racer --help` says of each command; the command itself is imported when it is run.
_GROUPS: Final = {
    "Start here": {
        "demo": "Run five small models behind a gateway, and measure it.",
        "init": "Write a configuration from the model lists of your servers.",
        "doctor": "Check everything that the gateway needs; say what to do next.",
        "serve": "Run the gateway.",
        "bootstrap": "Go from questions to an active calibration.",
        "route": "Show which candidates a gateway would call for a query.",
    },
    "Rows": {
        "label": "Send questions to every candidate, and grade the answers.",
        "plan": "Say what a number of labelled questions will give.",
        "samples": "Save a gateway's sample of live traffic as rows.",
        "split": "Divide rows at random: train, validate, calibrate.",
        "convert": "Turn records of lm-eval, RouterBench and others into rows.",
        "feedback": "Report which candidates answered a decision right.",
    },
    "Router and calibrations": {
        "train": "Train a router on labelled rows.",
        "tune": "Choose score, alpha and vote on validation rows.",
        "evaluate": "Measure risk, set size and accuracy on labelled rows.",
        "calibrate": "Calibrate a running gateway, or an artifact, with rows.",
        "calibrations": "List calibrations, and choose the active one.",
        "verify": "Recompute a decision from the stored calibration.",
    },
    "Keys, store and settings": {
        "key": "Manage API keys of clients.",
        "backup": "Back up calibrations, alarms and key hashes.",
        "restore": "Add the calibrations of a backup that the store lacks.",
        "db": "Manage the tables of the store.",
        "validate": "Check configuration, keys, artifact and encoder.",
        "schema": "Print the JSON Schema of the configuration.",
        "encoder": "Compute router scores for all gateways of this machine.",
        "completion": "Print the script that completes commands in your shell.",
    },
}
_MODULES: Final = {name: name for names in _GROUPS.values() for name in names} | {
    "restore": "backup"
}

EXIT_REFUSED, EXIT_CONFIGURATION, EXIT_UNREACHABLE = 1, 2, 3


def main() -> None:
    """Run the command. An expected error becomes one sentence on stderr and an exit code."""
    try:
        cli(prog_name="racer", standalone_mode=False)
    except click.exceptions.Exit as exc:
        sys.exit(exc.exit_code)
    except click.exceptions.NoArgsIsHelpError as exc:
        exc.show()
        sys.exit(EXIT_CONFIGURATION)
    except click.UsageError as exc:
        _print_error(_usage_error(exc))
        sys.exit(EXIT_CONFIGURATION)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except RacerError as exc:
        _print_error(str(exc))
        sys.exit(_exit_code(exc))


def _print_error(sentence: str) -> None:
    err.print(f"racer: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)


def _usage_error(exc: click.UsageError) -> str:
    """Click's message as one sentence that points to the command's help."""
    words = " ".join(exc.format_message().split()).removesuffix(".")
    command = exc.ctx.command_path if exc.ctx else "racer"
    return f"{words}: see `{command} --help`"


def _exit_code(exc: RacerError) -> int:
    if isinstance(exc, StoreSchemaError | ArtifactSchemaError):
        return EXIT_REFUSED
    if isinstance(exc, SettingsError | ArtifactError):
        return EXIT_CONFIGURATION
    if isinstance(exc, GatewayUnreachable | UpstreamError):
        return EXIT_UNREACHABLE
    return EXIT_REFUSED


class Commands(UserDict[str, Any]):
    """The subcommands, by name: importing all of them takes most of the time of a short one."""

    def __getitem__(self, name: str) -> click.Command:
        """Import one. Raises KeyError if it is unknown."""
        return getattr(import_module(f"app.cli.{self.data[name]}"), name)


class GroupedCommands(click.Group):
    """Subcommands whose help lists them by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each group under its heading."""
        width = max(map(len, _MODULES))
        for heading, commands in _GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), said) for name, said in commands.items()])


@click.group(
    cls=GroupedCommands,
    commands=Commands(_MODULES),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="racer")
def cli() -> None:
    """Route each query to a calibrated set of language models."""
