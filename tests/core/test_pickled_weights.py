"""Weights in torch's old format: the same encoder once converted, and nothing else of a pickle."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from racer_core.encoder.base import file_digest
from racer_core.encoder.hub import converted, copy_model
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.errors import ArtifactError
from racer_core.sandbox import SandboxedProcess
from tests.kit.lazy import LazyModule

torch = LazyModule("torch")
transformers = LazyModule("transformers")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's folder of assets."""

    def place(*names: str) -> Path:
        (folder := tmp_path.joinpath("assets", *names)).mkdir(parents=True, exist_ok=True)
        return folder

    monkeypatch.setattr("huggingface_hub.cached_assets_path", place)
    return tmp_path / "assets"


class Intruder:
    """A value whose pickle makes a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_the_encoder_is_the_same_and_converted_once(
    tiny_encoder: Path, tmp_path: Path, cache: Path
) -> None:
    """Digest, hence every weight. The second start reads no pickle, and a copy has none."""
    folder = shutil.copytree(tiny_encoder, tmp_path / "copy")
    weights = transformers.AutoModel.from_pretrained(folder).state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    found = [HuggingFaceEncoder(str(folder), backend="cpu", dtype="float32").spec]
    digest = file_digest(folder / "pytorch_model.bin")
    assert [each.name for each in cache.rglob("*") if each.is_file()] == ["model.safetensors"]
    assert converted(Path("no such file"), digest) == cache / "racer" / "safetensors" / digest
    found.append(HuggingFaceEncoder(str(tiny_encoder), backend="cpu", dtype="float32").spec)
    copy_model(str(folder), tmp_path / "artifact" / "encoder")
    found.append(HuggingFaceEncoder(str(tmp_path / "artifact" / "encoder"), dtype="float32").spec)
    assert found[0].digest == found[1].digest == found[2].digest


@pytest.mark.parametrize(
    "content", ["code", "a tensor that is larger than it looks", "half a file"]
)
def test_a_pickle_that_is_no_weights_is_refused(tmp_path: Path, cache: Path, content: str) -> None:
    """Nothing that it says is run, no memory beyond the limit is taken, nothing is cached."""
    file = tmp_path / "pytorch_model.bin"
    match content:
        case "code":
            torch.save({"weight": Intruder(tmp_path / "made by the pickle")}, file)
        case "half a file":
            torch.save({"weight": torch.ones(10_000)}, file)
            file.write_bytes(file.read_bytes()[:20_000])
        case _:
            torch.save({"weight": torch.ones(1).expand(10**12)}, file)
            assert file.stat().st_size < 10_000
    with pytest.raises(ArtifactError, match="holds more than tensors") as caught:
        converted(file, "digest")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made by the pickle").exists()
    assert [each for each in cache.rglob("*") if each.is_file()] == []


def test_a_cache_that_cannot_be_written_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where the folder would be; the hub's library calls that a ValueError."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", tmp_path / "file")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="set \\$HF_HOME"):
        converted(tmp_path / "pytorch_model.bin", "digest")


def test_a_process_that_says_no_message_is_not_taken_for_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is at fault, whatever its process wrote."""

    def receives(_: SandboxedProcess) -> None:
        raise ValueError("a message of the child is too long")

    monkeypatch.setattr(SandboxedProcess, "receive", receives)
    torch.save({"weight": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match=r"is not converted: .*too long"):
        converted(tmp_path / "pytorch_model.bin", "digest")
