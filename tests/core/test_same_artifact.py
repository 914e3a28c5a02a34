"""The same rows and seed give the same artifact, byte by byte, in any process and thread count."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from racer_core import artifacts
from racer_core.artifacts import Artifact
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from tests.kit.synthetic import POOL, synthetic_rows

ROOT = Path(__file__).resolve().parents[2]
TRAINING = """\
import sys
from pathlib import Path
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from tests.kit.synthetic import synthetic_rows

rows, validation = (synthetic_rows(n, seed=n, answers=True) for n in (1200, 300))
train(rows, validation, Path(sys.argv[1]), encoder=CharNgramEncoder(), kind=sys.argv[2],
      steps=None if sys.argv[2] == "knn" else 3)
"""


def trained(folder: Path, seed: int = 0, **changes: Any) -> Artifact:
    """A router of 120 rows; ``changes`` are of the first row."""
    rows = synthetic_rows(120, seed=1, answers=True)
    first = replace(rows.rows[0], **changes)
    rows = replace(rows, rows=(first, *rows.rows[1:]))
    validation = synthetic_rows(80, seed=2, answers=True)
    return train(rows, validation, folder, encoder=CharNgramEncoder(), kind="knn", seed=seed)


def content(folder: Path) -> list[bytes]:
    """The files of an artifact."""
    return [(folder / name).read_bytes() for name in artifacts.FILES]


def test_the_same_training_gives_the_same_artifact(tmp_path: Path) -> None:
    """Also its salt, which breaks ties: a random one changed what validation rows choose."""
    one, two = trained(tmp_path / "1"), trained(tmp_path / "2")
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert one.digest == two.digest


def test_the_salt_is_known_to_those_alone_who_have_all_rows(tmp_path: Path) -> None:
    """Each of seed, query, label and answer changes it: a guess of some rows confirms no query."""
    salt = trained(tmp_path / "1").salt
    others = [
        trained(tmp_path / "2", seed=1),
        trained(tmp_path / "3", query="What is the capital of France?"),
        trained(tmp_path / "4", correct=frozenset()),
        trained(tmp_path / "5", answers=dict.fromkeys(POOL, "1")),
    ]
    assert len({salt, *(each.salt for each in others)}) == 5
    assert len(salt) == 32


@pytest.mark.slow
@pytest.mark.parametrize("router", ["knn", "mlp"])
def test_processes_with_other_hashes_and_threads_train_the_same_artifact(
    router: str, tmp_path: Path
) -> None:
    """Order of sets, and sums that depend on how many threads share them."""
    for name, hashes, threads in (("1", "1", "1"), ("2", "2", "2"), ("3", "3", "3")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hashes,
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
        }
        subprocess.run(
            [sys.executable, "-c", TRAINING, tmp_path / name, router],
            check=True,
            cwd=ROOT,
            env=environment,
        )
    assert content(tmp_path / "1") == content(tmp_path / "2") == content(tmp_path / "3")
