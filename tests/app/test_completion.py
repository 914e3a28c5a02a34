"""`racer completion`: the script that it prints, in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.gateway import Command

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
# What bash does when the tab key is pressed behind a line: find the function, give it the words.
PRESSED = """
eval "$SCRIPT"
compopt() { told="$1 $2"; }  # a builtin that works behind a key alone
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
complete -p racer > /dev/null || exit 3
function=$(complete -p racer); function=${function##*-F }; function=${function%% *}
"$function" racer
printf '%s\\n' "${COMPREPLY[@]}" "$told"
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """The command on the path, and the script that it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = os.environ | {"PATH": path}
    command = ["racer", "completion", "bash"]
    return here | {"SCRIPT": subprocess.check_output(command, env=here, text=True)}


def pressed(words: tuple[str, ...], environment: dict[str, str]) -> set[str]:
    """The completions that bash offers for the last word, and its option for files."""
    done = subprocess.run(
        ["bash", "--norc", "-c", PRESSED, "bash", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return set(filter(None, done.stdout.splitlines()))


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("racer", "db", ""), {"upgrade"}),
        (("racer", "key", ""), {"list", "new", "revoke"}),
        (("racer", "calibrations", ""), {"activate", "list", "rollback", "show"}),
        (("racer", "calibrations", "rollback", "--fo"), {"--force"}),
        (("racer", "feedback", "--file", ""), {"-o default"}),
        (("racer", "calibrate", "--smoo"), {"--smoothing"}),
        (("racer", "calibrate", "--smoothing", ""), {"none", "hash"}),
        (("racer", "train", "--router", "m"), {"mlp"}),
        (("racer", "serve", "--config", ""), {"-o default"}),  # bash's own names of files
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bash_completes(
    environment: dict[str, str], words: tuple[str, ...], offered: set[str]
) -> None:
    """Commands, options, their values and files. Red when the script or its callback breaks."""
    assert pressed(words, environment) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(racer: Command, shell: str) -> None:
    """Each calls the command back under the name of its own shell."""
    code, out, stderr = racer("completion", shell)
    assert (code, stderr) == (0, "")
    assert f"_RACER_COMPLETE={shell}_complete" in out


def test_another_shell_is_refused(racer: Command) -> None:
    """With the names of those that are known."""
    code, out, stderr = racer("completion", "tcsh")
    assert (code, out) == (2, "")
    assert all(each in stderr for each in ("bash", "zsh", "fish"))
