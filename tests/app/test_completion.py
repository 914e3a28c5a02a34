"""`racer completion`: the script that it prints, in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command_results import failed
from tests.kit.gateway import Command

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


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes() -> None:
    """Commands, options, their values and files, as bash offers them for the last word."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = os.environ | {"PATH": path}
    script = subprocess.check_output(["racer", "completion", "bash"], env=here, text=True)
    for words, offered in (
        ("key ", {"list", "new", "revoke"}),
        ("calibrate --one", {"--one-per-cluster"}),
        ("calibrate --risk-target ", {"answerable", "paper", "quality"}),
        ("serve --config ", {"-o default"}),  # bash's own names of files
    ):
        done = subprocess.run(
            ["bash", "--norc", "-c", PRESSED, "bash", "racer", *words.split(" ")],
            capture_output=True,
            text=True,
            env=here | {"SCRIPT": script},
            timeout=60,
            check=True,
        )
        assert (set(filter(None, done.stdout.splitlines())), done.stderr) == (offered, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(racer: Command, shell: str) -> None:
    """Each calls the command back under the name of its own shell."""
    code, out, stderr = racer("completion", shell)
    assert (code, stderr) == (0, "")
    assert f"_RACER_COMPLETE={shell}_complete" in out


def test_another_shell_is_refused(racer: Command) -> None:
    """With the names of those that are known."""
    failed(racer("completion", "tcsh"), 2, "bash", "zsh", "fish")
