"""requirements.txt is everything that `make setup-vllm` installs, and enough."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.constraints import canonical, pins

from .conftest import PYTHON

HERE: Final = Path(__file__).parent
# For sound and pictures alone, which no test here has.
LEFT_OUT: Final = {"torchaudio", "torchcodec", "torchvision"}


def test_every_line_is_a_pin_in_order() -> None:
    """Red when a version is left to the package index, or a line names a place or a build."""
    text = (HERE / "requirements.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line) for line in lines)
    names = [canonical(line.partition("==")[0]) for line in lines]
    assert names == sorted(set(names))
    assert f"torch=={pins()['torch']}" in lines


@pytest.mark.vllm
@pytest.mark.slow
def test_nothing_is_missing_but_what_is_left_out() -> None:
    """Red when vLLM, or what it needs, needs something that is not pinned."""
    done = subprocess.run(
        [os.environ[PYTHON], "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    missing = set(re.findall(r"requires ([\w.-]+).*, which is not installed", done.stdout))
    assert missing == LEFT_OUT, done.stdout
    assert all("is not installed" in line for line in done.stdout.splitlines()), done.stdout
