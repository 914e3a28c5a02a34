"""`racer train` with every kind of router, from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from racer_core import artifacts
from tests.kit.command_results import failed, parsed, write
from tests.kit.gateway import Command, labelled


@pytest.fixture
def word_vectors(tmp_path: Path) -> Path:
    """Word vectors that know three words."""
    folder = tmp_path / "words"
    folder.mkdir()
    vocabulary = {"[UNK]": 0, "What": 1, "is": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"embeddings": np.eye(3, dtype=np.float32)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def arguments(tmp_path: Path) -> list[object]:
    """A small training on character n-grams."""
    data = write(tmp_path / "train.jsonl", labelled(0, 40))
    validation = write(tmp_path / "validation.jsonl", labelled(5_000, 40))
    return ["train", "--data", data, "--validation", validation, "--out", tmp_path / "a",
            "--encoder", "char-ngrams", "--json"]  # fmt: skip


def test_options_and_steps_reach_the_training(
    racer: Command, arguments: list[object], tmp_path: Path
) -> None:
    """Numbers arrive as numbers; the log says what was chosen."""
    given = ["--router", "mlp", "--steps", 7, "--router-option", "hidden=5",
             "--router-option", "learning_rate=1e-2"]  # fmt: skip
    assert parsed(racer(*arguments, *given))["router"] == "mlp"
    log = json.loads((tmp_path / "a" / "training.json").read_text())
    assert (log["hidden"], log["learning_rate"], log["steps"]) == (5, 0.01, 7)
    assert not (tmp_path / "a" / "checkpoint").exists()
    knn = ["--router-option", "k=3", "--resume"]
    parsed(racer(*arguments, *knn))
    assert artifacts.load(tmp_path / "a").router.settings()["k"] == 3


def test_the_encoder_is_chosen_among_several(
    racer: Command, arguments: list[object], word_vectors: Path, tmp_path: Path
) -> None:
    """The artifact has the chosen one; output, table and report have the figures of all."""
    write(tmp_path / "train.jsonl", labelled(0, 200))
    write(tmp_path / "validation.jsonl", labelled(5_000, 100))
    several = [*arguments, "--encoder", word_vectors]
    found = parsed(racer(*several))
    assert {each["name"] for each in found["encoders"]} == {"char-ngrams", str(word_vectors)}
    [chosen] = [each for each in found["encoders"] if each["chosen"]]
    assert chosen["name"] == "char-ngrams"  # the other one sees a single kind of question
    assert artifacts.load(tmp_path / "a").encoder.kind == "char-ngrams"
    log = json.loads((tmp_path / "a" / "training.json").read_text())
    assert [each["name"] for each in log["encoders"]] == [
        each["name"] for each in found["encoders"]
    ]
    shown = racer(*[each for each in several if each != "--json"])[1]
    assert "minus the smallest" in shown
    assert "chosen" in shown
    alone = [word_vectors if each == "char-ngrams" else each for each in arguments]
    assert parsed(racer(*alone))["encoder"] == "word-vectors"


def test_a_copied_encoder_goes_with_the_artifact(
    racer: Command, arguments: list[object], word_vectors: Path, tmp_path: Path
) -> None:
    """The artifact opens on a machine that has nothing else."""
    alone = [word_vectors if each == "char-ngrams" else each for each in arguments]
    parsed(racer(*alone, "--copy-encoder"))
    shutil.rmtree(word_vectors)
    moved = (tmp_path / "a").rename(tmp_path / "b")
    assert {each.name for each in (moved / "encoder").iterdir()} == {
        "model.safetensors", "tokenizer.json",
    }  # fmt: skip
    artifacts.open_encoder(artifacts.load(moved).encoder)
    again = [moved / "encoder" if each == word_vectors else each for each in alone]
    again = [moved if each == tmp_path / "a" else each for each in again]
    failed(racer(*again, "--copy-encoder"), 2, "begin with another one")


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["--router", "mlp", "--router-option", "width=5"], 1, ["no option 'width'", "hidden"]),
        (["--router", "knn", "--router-option", "k=near"], 1, ["k must be a whole number"]),
        (["--router", "knn", "--steps", 5], 1, ["router knn is not trained in steps"]),
        (["--router", "routerdc"], 1, ["no weights", "--encoder"]),
        (["--router", "routerdc", "--dtype", "int8"], 1, ["no weights", "another format"]),
        (["--encoder", "auto", "--dtype", "int8"], 1, ["name one --encoder"]),
        (["--encoder", "auto", "--copy-encoder"], 1, ["name one --encoder"]),
        (["--router", "routerdc", "--copy-encoder"], 1, ["leave out --copy-encoder"]),
        (["--router", "mlp", "--seed", -1], 1, ["seed is -1"]),
    ],
)
def test_choices_that_a_router_does_not_have(
    racer: Command, arguments: list[object], tmp_path: Path,
    given: list[object], code: int, words: list[str],
) -> None:  # fmt: skip
    """One sentence that says which there are, and no artifact."""
    failed(racer(*arguments, *given), code, *words)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (["--router", "magic"], "knn, mlp, routerdc"),
        (["--router-option", "k"], "'k' is not key=value"),
        (["--router-option", "=3"], "'=3' is not key=value"),
        (["--steps", 0], "--steps"),
    ],
)
def test_words_that_the_command_does_not_understand(
    racer: Command, arguments: list[object], given: list[object], word: str
) -> None:
    """Usage: exit code 2."""
    code, out, stderr = racer(*arguments, *given)
    assert (code, out) == (2, "")
    assert word in stderr


def test_a_training_that_stopped_is_named_with_what_to_do(
    racer: Command, arguments: list[object], tmp_path: Path
) -> None:
    """Whatever lies there is not overwritten; `--resume` says that it is no checkpoint."""
    (tmp_path / "a" / "checkpoint").mkdir(parents=True)
    (tmp_path / "a" / "checkpoint" / "checkpoint.safetensors").write_bytes(b"")
    failed(racer(*arguments, "--router", "mlp"), 2, "--resume")
    failed(racer(*arguments, "--router", "mlp", "--resume"), 2, "damaged", "begin anew")
