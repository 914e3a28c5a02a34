"""Resumed training: the same result bit for bit, or an error with the reason."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.errors import ArtifactError
from racer_core.offline.fit import RouterChoice, Rows, fit
from racer_core.offline.reporting import silent
from racer_core.routers.checkpoint import FILE, Checkpoint
from racer_core.routers.mlp import MlpRouter
from tests.core.words import words

TEXTS, LABELS = words(40, 1)
OPTIONS = {"steps": 12, "learning_rate": 1e-3}  # batches of 32 span two orders of the 40 rows


class TrainingInterrupt(Exception):
    """The machine went away."""


def stop_after(steps):
    """A progress callback that ends the training."""

    def progress(stage, step, _total):
        if stage.startswith("RouterDC") and step == steps:
            raise TrainingInterrupt

    return progress


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    """The tiny random encoder, with dropout, in float32 on the CPU."""
    return HuggingFaceEncoder(str(tiny_encoder), backend="cpu", dtype="float32")


def tune(encoder, folder, progress=silent, *, resume=False, texts=TEXTS, labels=LABELS, **changes):
    """Twelve steps of RouterDC with a checkpoint every five."""
    choice = RouterChoice(
        kind="routerdc", options={**OPTIONS, **changes}, seed=3, resume=resume, checkpoint_every=5
    )
    rows = Rows(texts=texts, labels=labels)
    return fit(
        choice, rows, rows, pool=("m", "n"), encoder=encoder, folder=folder, progress=progress
    )


def assert_same(resumed, whole):
    """Bit for bit: losses, keys, their maps, and the encoder's weights."""
    assert resumed.losses == whole.losses
    assert resumed.encoder.spec.digest == whole.encoder.spec.digest
    for name, tensor in whole.router.tensors().items():
        np.testing.assert_array_equal(tensor, resumed.router.tensors()[name])


@pytest.fixture(scope="module")
def uninterrupted(encoder, tmp_path_factory):
    """The twelve steps in one go."""
    return tune(encoder, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("stopped", [7, 12])
def test_interrupted_and_resumed_is_uninterrupted(encoder, uninterrupted, tmp_path, stopped):
    """Stopped at step 7 it resumes from 5 and repeats 6 and 7; all steps are reported."""
    with pytest.raises(TrainingInterrupt):
        tune(encoder, tmp_path, stop_after(stopped))
    heard = []
    resumed = tune(encoder, tmp_path, lambda *step: heard.append(step), resume=True)
    assert_same(resumed, uninterrupted)
    steps_done = [(step, steps) for stage, step, steps in heard if stage.startswith("RouterDC")]
    assert steps_done == [(step, 12) for step in range(1, 13)]


def test_resumed_training_goes_on_and_does_not_begin_anew(encoder, half_done):
    """A mark in the losses of the checkpoint is still there at the end."""
    path = half_done / "checkpoint" / FILE
    with safe_open(path, framework="np") as file:
        losses = json.loads(file.metadata()["training"])["losses"]
    assert len(losses) == 5
    mark = str(losses[0])[:-1] + ("1" if str(losses[0])[-1] != "1" else "2")
    path.write_bytes(path.read_bytes().replace(str(losses[0]).encode(), mark.encode()))
    assert tune(encoder, half_done, resume=True).losses[0] == float(mark)


def test_resuming_where_nothing_is_begins(encoder, uninterrupted, tmp_path):
    """A supervisor may always pass --resume."""
    assert_same(tune(encoder, tmp_path, resume=True), uninterrupted)


@pytest.fixture
def half_done(encoder, tmp_path):
    """A folder with the checkpoint of a training that stopped after five steps."""
    with pytest.raises(TrainingInterrupt):
        tune(encoder, tmp_path, stop_after(5))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learning_rate": 1e-4}, "learning_rate was 0.001"),
        ({"steps": 20}, "steps was 12"),
        ({"texts": [*TEXTS[1:], "a b"]}, "data"),
        ({"labels": ~LABELS}, "data"),
    ],
)
def test_checkpoint_of_other_data_or_settings_is_refused(encoder, half_done, changes, named):
    """And the difference is named."""
    with pytest.raises(ArtifactError, match=named):
        tune(encoder, half_done, resume=True, **changes)


def test_checkpoint_of_another_encoder_is_refused(tiny_encoder, half_done):
    """The same folder opened with another pooling is another beginning."""
    other = HuggingFaceEncoder(str(tiny_encoder), pooling="cls", backend="cpu", dtype="float32")
    with pytest.raises(ArtifactError, match="encoder_pooling was 'mean'"):
        tune(other, half_done, resume=True)


@pytest.mark.parametrize("length", [0, 7, 2_000])
def test_damaged_checkpoint_is_one_sentence(encoder, half_done, length):
    """A disk that lost the end of the file."""
    path = half_done / "checkpoint" / FILE
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ArtifactError, match="damaged") as caught:
        tune(encoder, half_done, resume=True)
    assert "\n" not in str(caught.value)


def test_training_killed_while_it_saves_finds_the_checkpoint_before(
    encoder, uninterrupted, half_done
):
    """What was half written lies beside it, and is replaced."""
    (half_done / "checkpoint" / FILE).with_suffix(".new").write_bytes(b"half")
    assert_same(tune(encoder, half_done, resume=True), uninterrupted)


def mlp(folder, progress=lambda *_: None, **options):
    """Nine epochs of a small network, with a checkpoint every 4."""
    rng = np.random.default_rng(1)
    checkpoint = Checkpoint(folder=folder / "checkpoint", identity={"seed": 3}, every=4, **options)
    return MlpRouter.fit(
        rng.standard_normal((50, 6)).astype(np.float32),
        rng.random((50, 3)) < 0.5,
        seed=3,
        hidden=8,
        epochs=9,
        checkpoint=checkpoint,
        progress=progress,
    )
