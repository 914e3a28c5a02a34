"""int8 on a CPU: an exported transformer is near to its float32, repeatable, and bound by name."""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import numpy as np
import pytest

from racer_core import artifacts
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.onnx import OnnxEncoder, export
from racer_core.errors import ArtifactError, install_hint
from racer_core.offline.train import EncoderChoice, train
from racer_core.racer import Racer
from racer_core.types import LabelledRow, LabelledRows
from tests.docs.blocks import ROOT
from tests.kit.lazy import LazyModule

transformers = LazyModule("transformers")

TEXTS = [
    " ".join(each) for each in ("a", "hb", "ccd", "gfea", "abcdefgh", "hhhhhhhhhhhhh", "eb" * 9)
]
LONG = " ".join("abcdefgh" * 10)  # beyond the model's 64 tokens
LIMIT = 24
POOL = ("first", "second")


def int8(folder, name, **options):
    """The choice that `racer train --dtype int8` makes."""
    return EncoderChoice(
        name=str(name), dtype="int8", max_tokens=LIMIT, export_to=folder / "encoder", **options
    )


def labelled(count, seed):
    """Texts of ten words of one half of the alphabet; candidate m is right on half m."""
    rng = np.random.default_rng(seed)
    rows = [
        LabelledRow(
            query=" ".join(rng.choice(list(("abcd", "efgh")[half]), 10)),
            correct=frozenset({POOL[half]}),
            answers={},
        )
        for half in rng.integers(0, 2, count)
    ]
    return LabelledRows(pool=POOL, rows=tuple(rows))


@pytest.fixture(scope="module")
def model(tiny_encoder, tmp_path_factory):
    """The tiny encoder with layers that count: as it is made, an embedding is its tokens' mean."""
    model = transformers.AutoModel.from_pretrained(tiny_encoder)
    for name, weights in model.named_parameters():
        if name.startswith("encoder.layer") and weights.ndim == 2:
            weights.data *= 8
    folder = shutil.copytree(tiny_encoder, tmp_path_factory.mktemp("float32") / "model")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """An artifact whose router was trained with the exported encoder."""
    folder = tmp_path_factory.mktemp("int8") / "artifact"
    rows, validation = labelled(60, seed=1), labelled(40, seed=2)
    encoder = int8(folder, model).open()
    train(rows, validation, folder, encoder=encoder, kind="knn")
    return folder


@pytest.fixture(scope="module")
def encoder(folder):
    """The artifact's, opened again."""
    return artifacts.open_encoder(artifacts.load(folder).encoder)


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the artifact that a test may change."""
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embeddings_are_near_those_of_float32(folder, model, pooling):
    """Rounding to 8 bits: MiniLM's real weights had a mean distance of 7e-3, a seventh of 0.05."""
    options = {"pooling": pooling, "backend": "cpu", "dtype": "float32"}
    fine = HuggingFaceEncoder(str(model), max_tokens=LIMIT, **options).encode([*TEXTS, LONG])
    found = OnnxEncoder(str(folder / "encoder"), pooling=pooling).encode([*TEXTS, LONG])
    cosines = found.embeddings @ fine.embeddings.T
    assert cosines.diagonal().min() >= 0.95
    assert cosines.diagonal().min() < 1.0 - 1e-5  # or nothing was quantised
    assert cosines.argmax(axis=1).tolist() == list(range(len(cosines)))
    np.testing.assert_allclose(np.linalg.norm(found.embeddings, axis=1), 1.0, atol=1e-6)
    assert found.truncated.tolist() == fine.truncated.tolist() == [False] * len(TEXTS) + [True]


def test_a_text_has_the_same_bits_alone_and_in_every_batch(encoder):
    """Whatever stands beside it, tokenised before or on other threads."""
    alone = np.vstack([encoder.encode([text]).embeddings for text in TEXTS])
    assert np.array_equal(encoder.encode(TEXTS).embeddings, alone)
    assert np.array_equal(encoder.encode([LONG, *TEXTS[::-1]]).embeddings[:0:-1], alone)
    with ThreadPoolExecutor(3) as threads:
        for whole in threads.map(encoder.tokenized, [TEXTS] * 6):
            assert np.array_equal(encoder.encode(whole).embeddings, alone)
    assert encoder.encode([]).embeddings.shape == (0, 32)


def test_the_artifact_serves_without_torch(copy, folder):
    """Moved elsewhere, another process gives the same scores; it imports no torch."""
    spec = artifacts.load(folder).encoder
    assert (spec.kind, spec.backend, spec.dtype, spec.max_tokens) == ("onnx", "cpu", "int8", LIMIT)
    assert str(folder) not in (folder / "manifest.json").read_text()
    assert b"site-packages" not in (folder / "encoder" / "model.onnx").read_bytes()
    program = (
        "import json, sys; from racer_core.racer import Racer\n"
        "scores = Racer.load(sys.argv[1]).score(sys.argv[2:]).scores.tolist()\n"
        "print(json.dumps([scores, sorted({'torch', 'transformers', 'onnx'} & {*sys.modules})]))"
    )
    command = [sys.executable, "-c", program, str(copy), *TEXTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [Racer.load(folder).score(TEXTS).scores.tolist(), []]


@pytest.mark.parametrize("name", ["model.onnx.data", "tokenizer.json"])
def test_a_changed_file_is_refused_by_the_digest(copy, name):
    """One byte of a weight, or one blank of the tokenizer."""
    file = copy / "encoder" / name
    content = bytearray(file.read_bytes())
    content[-1:] = b"}\n" if name.endswith("json") else bytes([content[-1] ^ 1])
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"digest .* became"):
        Racer.load(copy)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_a_missing_or_damaged_file_is_refused_in_one_sentence(copy, name):
    """The sentence names the folder."""
    for damage in (lambda file: file.write_bytes(b"{"), lambda file: file.unlink()):
        damage(copy / "encoder" / name)
        with pytest.raises(ArtifactError, match=r"copy/encoder' must be a folder that"):
            Racer.load(copy)


def test_another_version_of_onnx_runtime_is_refused_by_name(copy):
    """Its kernels may round otherwise."""
    version = metadata.version("onnxruntime")
    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest["encoder"]["forward"] == f"onnxruntime {version}"
    manifest["encoder"]["forward"] = "onnxruntime 1.0.0"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    became = f"forward 'onnxruntime 1.0.0' became 'onnxruntime {version}'"
    with pytest.raises(ArtifactError, match=became):
        Racer.load(copy)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_its_remedy(
    folder, tiny_encoder, tmp_path, monkeypatch, package
):
    """Training needs all three, and serving ONNX Runtime alone."""
    monkeypatch.setitem(sys.modules, package, None)
    remedy = re.escape(f"{package}: {install_hint('onnx')}")
    with pytest.raises(ArtifactError, match=remedy):
        int8(tmp_path, tiny_encoder).open()
    assert list(tmp_path.iterdir()) == []
    if package == "onnxruntime":
        with pytest.raises(ArtifactError, match=remedy):
            Racer.load(folder)
    else:
        assert len(Racer.load(folder).score(TEXTS).scores) == len(TEXTS)


@pytest.mark.parametrize("options", [{"backend": "cuda"}, {"forward": "lean"}])
def test_int8_takes_no_other_device_or_forward(tiny_encoder, tmp_path, options):
    """ONNX Runtime on a CPU is the one that was measured."""
    with pytest.raises(ArtifactError, match="ONNX Runtime on a CPU"):
        int8(tmp_path, tiny_encoder, **options).open()


def test_an_encoder_is_not_exported_onto_itself_or_nowhere(tiny_encoder, copy):
    """The folder to begin with stays as it is."""
    before = sorted(each.name for each in (copy / "encoder").iterdir())
    with pytest.raises(ArtifactError, match="begin with another one"):
        export(str(copy / "encoder"), copy / "encoder")
    with pytest.raises(ArtifactError, match="racer train"):
        EncoderChoice(name=str(tiny_encoder), dtype="int8").open()
    assert sorted(each.name for each in (copy / "encoder").iterdir()) == before
    assert before == ["model.onnx", "model.onnx.data", "tokenizer.json"]
