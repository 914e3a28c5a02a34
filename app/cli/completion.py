"""``racer completion``: shell completion scripts."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and their values in SHELL.

    For bash: racer completion bash > ~/.local/share/bash-completion/completions/racer
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None, "click supports every shell of the choice"
    # The variable is the one that click reads when the script calls back.
    click.echo(
        completion_class(context.find_root().command, {}, "racer", "_RACER_COMPLETE").source()
    )
