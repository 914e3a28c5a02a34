"""Artifacts that no longer fit are refused at the start, in one line."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from racer_core.encoder.char_ngrams import SPEC
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.errors import ArtifactError
from racer_core.offline.train import train
from racer_core.racer import Racer
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import synthetic_rows

transformers = LazyModule("transformers")


def edit(folder, change):
    """Rewrite the manifest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


@pytest.fixture
def copy(router_folder, tmp_path):
    """A copy of the artifact that a test may damage."""
    return shutil.copytree(router_folder, tmp_path / "copy")


def refusal(folder):
    """What loading says, in one line that names the folder."""
    with pytest.raises(ArtifactError) as caught:
        Racer.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_other_schema_version_says_what_to_do(copy, version):
    """Both versions and the command."""
    edit(copy, lambda manifest: manifest.update(schema_version=version))
    message = refusal(copy)
    assert repr(version) in message
    assert "reads 1" in message
    assert "racer train" in message


def test_the_code_of_a_network_is_named_where_there_is_one(copy):
    """An encoder that is no network has none, and one that is may not leave it out."""
    assert "forward" not in json.loads((copy / "manifest.json").read_text())["encoder"]
    edit(copy, lambda manifest: manifest["encoder"].update(kind="huggingface"))
    assert "forward" in refusal(copy)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("digest", "v0-1024"), ("max_tokens", 512), ("pooling", "cls"), ("backend", "cuda"),
        ("dtype", "bfloat16"),
    ],
)  # fmt: skip
def test_encoder_that_differs_is_named_field_by_field(copy, field, value):
    """Another dtype or backend moves scores, so the rows would have to be scored again."""
    edit(copy, lambda manifest: manifest["encoder"].update({field: value}))
    message = refusal(copy)
    assert field in message
    assert repr(value) in message
    assert repr(getattr(SPEC, field)) in message


def drop(key):
    """A change that forgets a key."""
    return lambda manifest: manifest.pop(key)


def put(*path_and_value):
    """A change that puts a value at a path of keys."""
    *path, key, value = path_and_value

    def change(manifest):
        for step in path:
            manifest = manifest[step]
        manifest[key] = value

    return change


DAMAGE = {
    "no candidates": drop("candidates"),
    "no encoder": drop("encoder"),
    "no router": drop("router"),
    "no tau": drop("null_threshold"),
    "no salt": drop("salt"),
    "empty pool": put("candidates", []),
    "pool is a text": put("candidates", "abc"),
    "a candidate twice": put("candidates", [{"name": name} for name in "aab"]),
    "two candidates for three columns": put("candidates", [{"name": name} for name in "ab"]),
    "names are numbers": put("candidates", [{"name": number} for number in range(3)]),
    "unknown field": put("candidates", 0, "price", 1),
    "empty encoder": put("encoder", {}),
    "encoder's name is a number": put("encoder", "name", 5),
    "router is a list": put("router", []),
    "unknown router": put("router", "kind", "oracle"),
    "another router": put("router", "kind", "mlp"),
    "router's kind is a list": put("router", "kind", []),
    "k is a text": put("router", "k", "many"),
    "rows are wider than the encoder's": put("router", "width", 5_000),
    "rows are narrower than their columns": put("router", "width", 5),
    "k is 0": put("router", "k", 0),
    "k is negative": put("router", "k", -1),
    "k is above the number of rows": put("router", "k", 301),
    "reach is a text": put("router", "reach", "far"),
    "reach is 0": put("router", "reach", 0),
    "reach is above the number of rows": put("router", "reach", 301),
    "no reach": lambda manifest: manifest["router"].pop("reach"),
    "no patterns": drop("patterns"),
    "patterns are a list": put("patterns", []),
    "neighbours of the patterns are 0": put("patterns", "neighbours", 0),
    "neighbours of the patterns are no whole number": put("patterns", "neighbours", 2.5),
    "neighbours of the patterns are a text": put("patterns", "neighbours", "many"),
    "no votes for the prior": put("patterns", "prior", 0),
    "temperature is negative": put("patterns", "temperature", -1.0),
    "tau is a text": put("null_threshold", "high"),
    "salt is a number": put("salt", 5),
    "the longest text is a text": put("longest_text", "8192"),
    "salt is too long for a key": put("salt", "x" * 65),
    "a pin without files": put("encoder_pin", {"revision": "main"}),
    "a pin whose files are a list": put("encoder_pin", {"revision": "main", "files": []}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_manifest_is_refused_at_start(copy, damage):
    """Not at the first request: each of these would raise or mislead there."""
    edit(copy, DAMAGE[damage])
    refusal(copy)


@pytest.mark.parametrize(
    "tensors",
    [
        {"labels": None}, {"sparse_values": None}, {"training_fingerprints": None},
        {"labels": np.ones(300, np.uint8)}, {"labels": np.ones((299, 3), np.uint8)},
        {"labels": np.ones((300, 4), np.uint8)},
        {"embeddings": np.ones((300, 5), np.float32), "sparse_sizes": None}, {"patterns": None},
        {"pattern_frequencies": None}, {"patterns": np.ones((8, 4), np.uint8)},
        {"patterns": np.ones(8, np.uint8)}, {"pattern_frequencies": np.full(3, 1 / 3)},
    ],
    ids=[
        *("no labels", "no vectors", "no prints", "1-D", "rows", "columns", "width"),
        *("no patterns", "no frequencies", "pattern columns", "1-D patterns", "pattern rows"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused_at_start(copy, tensors):
    """Missing, or of a shape that the pool, the rows or the encoder do not have."""
    path = copy / "router.safetensors"
    changed = {**load_file(path), **tensors}
    save_file({name: value for name, value in changed.items() if value is not None}, path)
    edit(copy, put("weights_sha256", hashlib.sha256(path.read_bytes()).hexdigest()))
    refusal(copy)


def test_weights_of_another_training_are_refused(copy):
    """Half of an artifact was copied over another: the two files do not belong together."""
    path = copy / "router.safetensors"
    save_file({**load_file(path), "labels": np.zeros((300, 3), np.uint8)}, path)
    message = refusal(copy)
    assert "not the file that manifest.json was written for" in message
    assert "racer train" in message


@pytest.mark.parametrize("name", ["manifest.json", "router.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "junk"])
def test_damaged_file_is_refused_in_one_line(copy, name, damage):
    """A copy that stopped half-way; a file of something else."""
    path = copy / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "cut": data[: len(data) // 2], "junk": b"\xff" * 100}[damage]
        )
    assert str(copy) in refusal(copy)


@pytest.fixture
def local(tiny_encoder, tmp_path):
    """A folder with an encoder and an artifact that was trained with it."""
    encoder = shutil.copytree(tiny_encoder, tmp_path / "local" / "encoder")
    rows, validation = synthetic_rows(40, seed=5), synthetic_rows(20, seed=6)
    opened = HuggingFaceEncoder(str(encoder), backend="cpu", dtype="float32")
    train(rows, validation, tmp_path / "local" / "router", encoder=opened, kind="knn")
    return tmp_path / "local"


def test_artifact_moved_together_with_its_encoder_still_loads(local, tmp_path):
    """A local encoder is remembered relative to the artifact: think of a container image."""
    before = Racer.load(local / "router").score(["a b c"]).scores
    moved = local.rename(tmp_path / "elsewhere")
    np.testing.assert_array_equal(Racer.load(moved / "router").score(["a b c"]).scores, before)
    assert str(tmp_path) not in (moved / "router" / "manifest.json").read_text()


def test_encoder_with_other_weights_is_refused(local):
    """After fine-tuning in place scores would change unnoticed."""
    model = transformers.AutoModel.from_pretrained(local / "encoder")
    model.embeddings.word_embeddings.weight.data[4] += 0.1
    model.save_pretrained(local / "encoder")
    assert "digest" in refusal(local / "router")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("max_tokens", 99, "max_tokens 99 became 64"), ("dtype", "bfloat16", "digest")],
)
def test_local_encoder_opened_otherwise_is_refused(local, field, value, message):
    """More tokens than the model has; the same weights in another number format."""
    edit(local / "router", lambda manifest: manifest["encoder"].update({field: value}))
    assert message in refusal(local / "router")
