"""Encoders from a hub on 127.0.0.1: pinned, offline, broken off, in torch's old format."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from racer_core import artifacts
from racer_core.encoder.hub import DEFAULT_ENCODER, PINS
from racer_core.records.writer import write_rows
from tests.kit.lazy import LazyModule
from tests.kit.model_hub import COMMIT, running
from tests.kit.synthetic import synthetic_rows

sentencepiece = LazyModule("sentencepiece")
torch = LazyModule("torch")
transformers = LazyModule("transformers")

ROOT = Path(__file__).parents[2]
PLAIN = "somebody/plain"  # a model with safetensors
TEXTS = ["What is 17 plus 25?", "Was ist 17 plus 25?", "a"]

# Prints what it found, or the error. The hub's library waits a second between two attempts, and
# resumes at multiples of 10 MiB.
FIND = """
import json, sys, time
from huggingface_hub import constants
from racer_core.encoder import hub
from racer_core.encoder.base import Pin
from racer_core.errors import ArtifactError

time.sleep = lambda _: None
constants.DOWNLOAD_CHUNK_SIZE = 10_000
pins = [Pin(**each) for each in map(json.loads, sys.argv[2:])]
try:
    model = hub.find_model(sys.argv[1], *pins)
except ArtifactError as exc:
    found = {"error": str(exc)}
else:
    pin = {"revision": model.pin.revision, "files": dict(model.pin.files)}
    found = {"folder": str(model.folder), "weights": str(model.weights), "pin": pin}
print(json.dumps(found))
"""

# Opens the encoder of an artifact as a gateway does, and embeds.
EMBED = """
import json, sys
from racer_core import artifacts

encoder = artifacts.open_encoder(artifacts.load(sys.argv[1]).encoder)
print(json.dumps(encoder.encode(json.loads(sys.argv[2])).embeddings.tolist()))
"""


class Machine:
    """A machine with an empty cache, whose hub is the one at ``url``."""

    def __init__(self, home: Path, url: str) -> None:
        self.home, self.url, self.offline = home, url, False

    def run(self, *arguments: object) -> str:
        """Run Python there; its standard output."""
        removed = ("HF_", "TRANSFORMERS_", "XDG_CACHE_HOME", "http_proxy", "https_proxy")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(removed)}
        environment |= {"HF_ENDPOINT": self.url, "HF_HOME": str(self.home), "NO_PROXY": "*"}
        if self.offline:
            environment["HF_HUB_OFFLINE"] = "1"
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert "UNEXPECTED" not in done.stderr  # a table of the heads that an encoder leaves out
        return done.stdout

    def find(self, name: str, *pins: dict[str, Any]) -> dict[str, Any]:
        """What ``find_model`` finds there."""
        return json.loads(self.run("-c", FIND, name, *map(json.dumps, pins)))

    def damage(self, name: str) -> str:
        """Change a cached file; its path."""
        [file] = self.home.glob(f"hub/models--*/snapshots/*/{name}")
        content = file.read_bytes()
        file.resolve().write_bytes(content[: len(content) // 2])
        return str(file.resolve())


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A repository with safetensors beside files that nothing should fetch."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("# Nothing to fetch")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle that nothing should fetch")
    save_file({"weight": np.arange(30_000, dtype=np.float32)}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def mdeberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository shaped like mDeBERTa's: a pickle in half precision, and a sentencepiece model.

    The configuration has its fields and their forms with smaller numbers; weights have the names of
    the pretraining model, whose heads an encoder leaves out.
    """
    folder = tmp_path_factory.mktemp("mdeberta")
    vocabulary = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(synthetic_rows(200, seed=3).queries),
        model_writer=vocabulary,
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3,
        pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]",
        minloglevel=2,
    )  # fmt: skip
    (folder / "spm.model").write_bytes(vocabulary.getvalue())
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    config = {
        "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 32, "initializer_range": 0.02,
        "intermediate_size": 64, "max_position_embeddings": 64, "relative_attention": True,
        "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1,
        "position_biased_input": False, "num_attention_heads": 2, "num_hidden_layers": 2,
        "type_vocab_size": 0, "vocab_size": 80,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.DebertaV2Model(transformers.DebertaV2Config(**config)).half()
    weights = {f"deberta.{name}": value for name, value in model.state_dict().items()}
    weights["lm_predictions.lm_head.bias"] = torch.zeros(80).half()
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "tf_model.h5").write_bytes(b"another framework's")
    (folder / "pytorch_model.generator.bin").write_bytes(b"another model's")
    return folder


def expected(folder: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Embeddings of ``TEXTS`` straight from the repository's files, by transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.DebertaV2Model(transformers.AutoConfig.from_pretrained(folder)).eval()
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    own = {k.removeprefix("deberta."): v.float() for k, v in weights.items() if "lm_" not in k}
    model.load_state_dict(own)
    rows = []
    for text in TEXTS:
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        rows.append((hidden.mean(0) / hidden.mean(0).norm()).numpy())
    return np.array(rows)


@pytest.mark.slow
def test_a_pickle_alone_is_converted_trained_with_and_served_offline(
    mdeberta: Path, tmp_path: Path
) -> None:
    """The default encoder's shape, from the hub to a gateway that cannot reach it."""
    data, validation = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    write_rows(synthetic_rows(80, seed=1), data)
    write_rows(synthetic_rows(40, seed=2), validation)
    with running({DEFAULT_ENCODER: mdeberta}) as hub:
        machine = Machine(tmp_path / "hf", hub.url)
        machine.run(
            "-m", "app", "train", "--data", data, "--validation", validation,
            "--out", tmp_path / "artifact", "--encoder", f"{DEFAULT_ENCODER}@main",
            "--backend", "cpu", "--dtype", "float32",
        )  # fmt: skip
        fetched = {path.rpartition("/")[2] for path in hub.paths("GET") if "api" not in path}
        assert fetched == {"config.json", "tokenizer_config.json", "spm.model", "pytorch_model.bin"}
        manifest = json.loads((tmp_path / "artifact" / "manifest.json").read_text())
        assert manifest["encoder_pin"]["revision"] == COMMIT
        assert set(manifest["encoder_pin"]["files"]) == fetched
    machine.offline = True
    found = json.loads(machine.run("-c", EMBED, tmp_path / "artifact", json.dumps(TEXTS)))
    np.testing.assert_allclose(np.array(found), expected(mdeberta), atol=1e-5)
    assert artifacts.load(tmp_path / "artifact").encoder.forward == "lean"


def test_safetensors_are_taken_where_they_are_offered(plain: Path, tmp_path: Path) -> None:
    """No pickle is fetched, a cut download goes on by its range, a recorded commit asks nothing."""
    with running({PLAIN: plain}) as hub:
        hub.cuts = [50_000, 20_000]
        machine = Machine(tmp_path / "hf", hub.url)
        found = machine.find(PLAIN)
        ranges = [each for _, path, each in hub.requests if path.startswith("/large")]
        assert ranges == [None, "bytes=50000-", "bytes=70000-"]
        assert found["folder"] == found["weights"]
        whole = Path(found["weights"], "model.safetensors").read_bytes()
        assert whole == (plain / "model.safetensors").read_bytes()
        assert not any("README" in path or ".bin" in path for _, path, _ in hub.requests)
        assert set(found["pin"]["files"]) == {"config.json", "model.safetensors", "tokenizer.json"}
        hub.requests.clear()
        assert machine.find(PLAIN, found["pin"]) == found
        assert hub.requests == []
    machine.offline = True
    assert machine.find(PLAIN) == found


def test_a_half_download_is_never_used(plain: Path, tmp_path: Path) -> None:
    """The error says to run the command again, which works; until then nothing is in the cache."""
    with running({PLAIN: plain}) as hub:
        machine = Machine(tmp_path / "hf", hub.url)
        hub.cuts = [50_000, *[0] * 20]
        error = machine.find(PLAIN)["error"]
        assert "broke off" in error
        assert "run the command again" in error
        assert "\n" not in error
        assert not [*machine.home.rglob("*.incomplete"), *machine.home.rglob("model.safetensors")]
        machine.offline = True
        assert "nor complete in the hub's cache" in machine.find(PLAIN)["error"]
        machine.offline, hub.cuts = False, []
        assert "pin" in machine.find(PLAIN)


def test_a_damaged_file_of_the_cache_is_named(plain: Path, tmp_path: Path) -> None:
    """A half copy of a cache: small files by git's digest, large ones by sha256."""
    with running({PLAIN: plain}) as hub:
        machine = Machine(tmp_path / "hf", hub.url)
        pin = machine.find(PLAIN)["pin"]
        for name, given in (("config.json", ()), ("model.safetensors", (pin,))):
            file = machine.damage(name)
            assert f"delete {file}" in machine.find(PLAIN, *given)["error"]
            Path(file).unlink()
        assert machine.find(PLAIN)["pin"] == pin


def test_the_default_encoder_is_one_commit_with_known_digests(
    mdeberta: Path, tmp_path: Path
) -> None:
    """Another file under its name is refused before it is unpickled; a named revision is not."""
    with running({DEFAULT_ENCODER: mdeberta}, PINS[DEFAULT_ENCODER].revision) as hub:
        machine = Machine(tmp_path / "hf", hub.url)
        error = machine.find(DEFAULT_ENCODER)["error"]
        assert "is pinned" in error
        assert "owner/model@revision" in error
        assert not (machine.home / "assets").exists()
        assert all(hub.commit in path for path in hub.paths("HEAD") if path != "/")


def test_a_hub_without_the_model_says_so(plain: Path, tmp_path: Path) -> None:
    """An unknown repository, an unknown revision, a name that is none, a model without weights."""
    (plain / "model.safetensors").unlink()
    (plain / "pytorch_model.bin").unlink()
    with running({PLAIN: plain}) as hub:
        machine = Machine(tmp_path / "hf", hub.url)
        assert "Repository Not Found" in machine.find("somebody/else")["error"]
        assert "Revision Not Found" in machine.find(f"{PLAIN}@v9")["error"]
        assert "Repo id" in machine.find("no/such/folder")["error"]
        assert "has neither model.safetensors nor" in machine.find(PLAIN)["error"]


@pytest.mark.parametrize(("name", "listens"), [(DEFAULT_ENCODER, False), (PLAIN, True)])
def test_without_a_hub_the_error_says_what_needs_none(
    tmp_path: Path, name: str, listens: bool
) -> None:
    """Red if a hub that accepts connections and never answers is waited for without an end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
        error = Machine(tmp_path / "hf", f"http://127.0.0.1:{listener.getsockname()[1]}").find(
            name
        )["error"]
        assert "the hub does not answer" in error
        assert "`char-ngrams`, which needs no download" in error
        assert f"hf download {name}" in error
