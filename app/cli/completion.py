"""``completion``: what teaches a shell the command line."""

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
    known = get_completion_class(shell)
    assert known is not None, "click knows every shell of the choice"
    # As click itself asks for it once the script calls back.
    click.echo(known(context.find_root().command, {}, "racer", "_RACER_COMPLETE").source())
