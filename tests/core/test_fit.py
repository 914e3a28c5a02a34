"""`racer train` for every kind of router: options, what it leaves behind, and what loads again."""

import json
import shutil
import sys

import numpy as np
import pytest

from racer_core import artifacts
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.errors import ArtifactError, InputError
from racer_core.offline.fit import RouterChoice, Rows, fit
from racer_core.offline.train import train, write_log
from racer_core.racer import Racer
from tests.core.words import QUICK, rows_of
from tests.kit.synthetic import synthetic_rows


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    """The tiny random encoder, in float32 on the CPU."""
    return HuggingFaceEncoder(str(tiny_encoder), backend="cpu", dtype="float32")


@pytest.fixture(scope="module")
def shared(encoder, tmp_path_factory):
    """An artifact of RouterDC; leave it as it is."""
    folder = tmp_path_factory.mktemp("routerdc") / "artifact"
    options = {key: value for key, value in QUICK.items() if key != "steps"}
    train(rows_of(120, 1), rows_of(80, 2), folder, encoder=encoder, kind="routerdc",
          options=options, steps=QUICK["steps"], seed=5)  # fmt: skip
    return folder


@pytest.fixture
def artifact(shared, tmp_path):
    """A copy that a test may damage, at another place than where it was trained."""
    return shutil.copytree(shared, tmp_path / "moved")


def test_router_dc_is_loaded_with_its_own_encoder(artifact, encoder):
    """From wherever the folder is now; it beats the best single candidate, right on half."""
    racer = Racer.load(artifact, ("m", "n"))
    assert racer.artifact.router.kind == "routerdc"
    assert racer.artifact.encoder.name == str(artifact / "encoder")
    assert racer.encoder.spec.digest != encoder.spec.digest
    test = rows_of(200, 3)
    labels = test.labels(("m", "n"))
    first = racer.score(test.queries).scores.argmax(axis=1)
    assert labels[np.arange(200), first].mean() > 0.9 > labels.mean(axis=0).max()


def test_training_leaves_a_log_and_no_checkpoint(artifact):
    """Everything else in the folder is needed to serve, and readable for another user."""
    names = {path.name for path in artifact.iterdir()} - {"loss.png"}
    assert names == {"encoder", "manifest.json", "router.safetensors", "training.json"}
    log = json.loads((artifact / "training.json").read_text())
    assert (log["router"], log["seed"], log["steps"], len(log["losses"])) == ("routerdc", 5, 40, 40)
    assert (log["temperature"], log["positives"]) == (0.2, 3)
    assert all(path.stat().st_mode & 0o004 for path in artifact.rglob("*.safetensors"))


def test_mlp_goes_on_where_it_stopped(tmp_path):
    """Through `train`: the checkpoint is there when it stops, and gone when it is done."""
    rows, validation = synthetic_rows(60, seed=1), synthetic_rows(60, seed=2)
    options = {"hidden": 8}

    class Stopped(Exception):
        pass

    def stop(stage, done, _total):
        if stage.startswith("MLP") and done == 60:
            raise Stopped

    def run(folder, **more):
        return train(rows, validation, folder, encoder=CharNgramEncoder(), kind="mlp", seed=3,
                     options=options, steps=70, **more)  # fmt: skip

    whole = run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "a", progress=stop)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["checkpoint"]
    with pytest.raises(ArtifactError, match="--resume"):
        run(tmp_path / "a")
    resumed = run(tmp_path / "a", resume=True)
    for name, tensor in whole.router.tensors().items():
        np.testing.assert_array_equal(tensor, resumed.router.tensors()[name])
    assert not (tmp_path / "a" / "checkpoint").exists()
    logs = [json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "a")]
    assert logs[0] == logs[1]
    assert len(logs[0]["losses"]) == 70


def test_options_reach_the_router(tmp_path):
    """Three neighbours of KNN; a hidden layer of four."""
    rows = Rows(texts=["a", "b", "c", "d"], labels=np.eye(4, dtype=bool))

    def fitted(**chosen):
        return fit(RouterChoice(**chosen), rows, rows, pool="abcd", encoder=CharNgramEncoder(),
                   folder=tmp_path).router  # fmt: skip

    assert fitted(kind="knn", options={"k": 3}).k == 3
    mlp = fitted(kind="mlp", options={"hidden": 4}, steps=1)
    assert mlp.hidden_weight.shape[0] == 4


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"kind": "knn", "options": {"hidden": 3}}, "router knn has no option 'hidden'; it has k"),
        ({"kind": "mlp", "options": {"k": 3}}, "it has hidden, epochs, batch, learning_rate"),
        ({"kind": "routerdc", "options": {"seed": 3}}, "router routerdc has no option 'seed'"),
        ({"kind": "knn", "options": {"k": 0}}, "k is 0; it must be a whole number above 0"),
        ({"kind": "knn", "options": {"k": "many"}}, "k must be a whole number, not 'many'"),
        ({"kind": "mlp", "options": {"learning_rate": True}}, "learning_rate must be a number"),
        ({"kind": "mlp", "steps": 0}, "epochs is 0"),
        ({"kind": "knn", "steps": 5}, "router knn is not trained in steps"),
        ({"kind": "routerdc", "seed": -1}, "the seed is -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, chosen, message):
    """Before anything is embedded; with what would make sense."""
    rows = Rows(texts=["a"], labels=np.ones((1, 2), bool))
    with pytest.raises(InputError, match=message):
        fit(RouterChoice(**chosen), rows, rows, pool="ab", encoder=None, folder=tmp_path)


def test_router_dc_needs_an_encoder_with_weights(tmp_path):
    """Character n-grams have none to tune."""
    rows = synthetic_rows(20, seed=1)
    with pytest.raises(InputError, match="--encoder"):
        train(
            rows,
            synthetic_rows(20, seed=2),
            tmp_path / "a",
            encoder=CharNgramEncoder(),
            kind="routerdc",
        )
    assert not (tmp_path / "a").exists()


def test_an_artifact_can_be_the_beginning_of_another(artifact, tmp_path):
    """Its encoder is an ordinary one; only onto itself it cannot be trained."""
    racer = Racer.load(artifact)
    rows = rows_of(20, 4)
    others = rows_of(20, 5)
    with pytest.raises(InputError, match="begin with another"):
        train(rows, others, artifact, encoder=racer.encoder, kind="routerdc", steps=1)
    train(rows, others, tmp_path / "next", encoder=racer.encoder, kind="routerdc", steps=1)
    assert artifacts.load(tmp_path / "next").encoder.digest != racer.encoder.spec.digest


def test_log_holds_every_loss_and_a_curve_where_matplotlib_is(tmp_path, monkeypatch):
    """Plain JSON; an image, or none and no error; a folder that is not there is an error."""
    write_log(tmp_path, [0.5, 0.25], {"router": "mlp", "seed": 3, "hidden": 8})
    assert json.loads((tmp_path / "training.json").read_text()) == {
        "router": "mlp", "seed": 3, "hidden": 8, "losses": [0.5, 0.25], "steps": 2
    }  # fmt: skip
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "loss.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_log(tmp_path, [0.5], {})
    assert [path.name for path in tmp_path.iterdir()] == ["training.json"]
    with pytest.raises(ArtifactError, match="cannot be written"):
        write_log(tmp_path / "gone", [0.5], {})
