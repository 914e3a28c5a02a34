"""The transformer encoder on a tiny local folder: pooling, batches, truncation, refusals."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.errors import ArtifactError
from tests.kit.lazy import LazyModule

torch = LazyModule("torch")
transformers = LazyModule("transformers")

LONG = " ".join("abcdefgh" * 3)


def opened(folder, **options):
    """The encoder in float32 on the CPU unless the test says otherwise."""
    return HuggingFaceEncoder(str(folder), **{"backend": "cpu", "dtype": "float32", **options})


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    """Mean pooling."""
    return opened(tiny_encoder)


@pytest.fixture
def copy(tiny_encoder, tmp_path):
    """A copy of the folder that a test may damage."""
    return shutil.copytree(tiny_encoder, tmp_path / "copy")


def hidden_states(folder, text):
    """Last hidden states (tokens, width) of one text, straight from transformers."""
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        return (
            transformers.AutoModel.from_pretrained(folder)
            .eval()(**tokens)
            .last_hidden_state[0]
            .numpy()
        )


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_by_hand(tiny_encoder, pooling):
    """Mean over all tokens, or the first one; then scaled to length 1."""
    hidden = hidden_states(tiny_encoder, "a b g")
    assert len(hidden) == 5  # with [CLS] and [SEP]
    expected = hidden.mean(axis=0) if pooling == "mean" else hidden[0]
    embedded = opened(tiny_encoder, pooling=pooling).encode(["a b g"]).embeddings[0]
    np.testing.assert_allclose(embedded, expected / np.linalg.norm(expected), atol=1e-5)


def test_tokens_made_before_give_the_same_bits(encoder):
    """All, some or none of the texts have their tokens; threads may tokenise at the same time."""
    texts = ["a b g", LONG * 5, "", "c", *("a " * n for n in range(1, 30))]
    plain = encoder.encode(texts)
    with ThreadPoolExecutor(4) as threads:
        for whole in threads.map(encoder.tokenized, [texts] * 8):
            assert whole == texts
            for given in (whole, [*texts[:3], *whole[3:]], encoder.tokenized(whole)):
                again = encoder.encode(given)
                assert np.array_equal(again.embeddings, plain.embeddings)
                assert np.array_equal(again.truncated, plain.truncated)
    assert plain.truncated.any()
    assert encoder.encode([]).embeddings.shape == (0, 32)


def test_rows_come_back_in_the_order_of_the_texts(encoder):
    """Texts are sorted by length into batches of 32; row i still belongs to text i."""
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 12))) for _ in range(70)]
    together = encoder.encode(texts).embeddings
    assert together.shape == (70, 32)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    alone = np.vstack([encoder.encode([text]).embeddings for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.unique(alone.round(3), axis=0).shape[0] > 50  # so that a wrong order would show


def test_texts_beyond_max_tokens_are_cut_and_reported(tiny_encoder):
    """The report stays with its text although the longest is embedded first."""
    encoder = opened(tiny_encoder, max_tokens=5)
    encoded = encoder.encode(["a b c", "a", "a b c d", LONG])
    assert encoded.truncated.tolist() == [False, False, True, True]
    np.testing.assert_allclose(encoded.embeddings[0], encoded.embeddings[2], atol=1e-5)


def change_a_weight(folder):
    """One parameter moves by a little."""
    model = transformers.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias[0] += 1e-3
    model.save_pretrained(folder)


def change_the_configuration(folder):
    """Another activation: same weights, other embeddings."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))


def change_the_tokenizer(folder):
    """Two words swap their numbers."""
    text = (folder / "tokenizer.json").read_text()
    assert '"a": 4' in text
    text = text.replace('"a": 4', '"a": 0x').replace('"b": 5', '"b": 4').replace("0x", "5")
    (folder / "tokenizer.json").write_text(text)


@pytest.mark.parametrize(
    "change", [change_a_weight, change_the_configuration, change_the_tokenizer]
)
def test_every_change_of_the_embeddings_changes_the_digest(encoder, copy, change):
    """Weights, configuration and tokenizer: else a changed encoder would serve unnoticed."""
    change(copy)
    changed = opened(copy)
    assert not np.allclose(*(e.encode(["a b c"]).embeddings for e in (changed, encoder)), atol=1e-6)
    assert changed.spec.digest != encoder.spec.digest


def cut_the_weights(folder):
    """A download that stopped half-way."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5_000])


@pytest.mark.parametrize(
    "damage",
    [
        cut_the_weights,
        shutil.rmtree,
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text('{"model_type": "no such model"}'),
        lambda folder: (folder / "tokenizer.json").write_text("{"),
    ],
    ids=["cut", "gone", "no weights", "no config", "config", "model type", "tokenizer"],
)
def test_folder_that_cannot_be_loaded_is_one_line(copy, damage):
    """Fail at start, with the name of the folder and without a traceback of transformers."""
    damage(copy)
    with pytest.raises(ArtifactError, match="copy") as caught:
        opened(copy)
    assert "\n" not in str(caught.value)


def test_weights_and_options_that_do_not_exist_are_refused(copy, tiny_encoder):
    """What a model finds no weights for would be random numbers; a typo is an error, too."""
    for options in (
        {"backend": "abacus"},
        {"dtype": "fp32"},
        {"dtype": "int8"},
        {"pooling": "max"},
    ):
        with pytest.raises(ArtifactError, match=next(iter(options.values()))):
            opened(tiny_encoder, **options)
    if not torch.cuda.is_available():
        with pytest.raises(ArtifactError, match="no CUDA device"):
            opened(tiny_encoder, backend="cuda")
    names = load_file(copy / "model.safetensors")
    renamed = {f"other.{name}": value for name, value in names.items()}
    save_file(renamed, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="its weights lack 'embeddings"):
        opened(copy)
