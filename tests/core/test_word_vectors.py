"""Static word vectors: means by hand, truncation, refusals, and an artifact that needs no torch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from racer_core import artifacts
from racer_core.encoder.hybrid import HybridEncoder
from racer_core.encoder.word_vectors import WordVectorEncoder, has_word_vectors
from racer_core.errors import ArtifactError
from racer_core.offline.train import EncoderChoice, train
from racer_core.racer import Racer
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import synthetic_rows

safetensors = LazyModule("safetensors.numpy")

ROOT = Path(__file__).parents[2]
WORDS = {"[UNK]": 0, "a": 1, "b": 2, "c": 3}
VECTORS = np.array([[9, 9], [1, 0], [0, 1], [0, 3]], np.float32)
TEXTS = ["a b", "c", "a ? a b", "?", "", "b a"]


def folder_of(place, words=WORDS, model=None, **tensors):
    """A folder in the format of model2vec, without its configuration, which is not read."""
    place.mkdir(exist_ok=True)
    tokenizer = Tokenizer(model or models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_padding(length=8)  # both are of the file, and neither is used
    tokenizer.enable_truncation(2)
    tokenizer.save(str(place / "tokenizer.json"))
    safetensors.save_file(tensors or {"embeddings": VECTORS}, place / "model.safetensors")
    return str(place)


def unit(*vector):
    """A vector scaled to length 1."""
    return np.array(vector) / max(np.linalg.norm(vector), 1e-12)


def embedded(folder, *texts):
    """Embeddings of texts."""
    return WordVectorEncoder(folder).encode(texts).embeddings


def test_a_text_is_the_mean_of_the_vectors_of_its_known_words(tmp_path):
    """By hand; unknown words count nothing, and a text without known words is a row of zeros."""
    expected = [unit(1, 1), unit(0, 1), unit(2, 1), unit(0, 0), unit(0, 0), unit(1, 1)]
    together = embedded(folder_of(tmp_path), *TEXTS)
    assert together.dtype == np.float32
    np.testing.assert_allclose(together, expected, atol=1e-7)
    assert embedded(str(tmp_path)).shape == (0, 2)


def test_an_embedding_does_not_depend_on_its_batch(tmp_path):
    """Bit for bit, with vectors whose sums are not exact."""
    vectors = np.random.default_rng(1).normal(size=(4, 300)).astype(np.float16)
    folder = folder_of(tmp_path, embeddings=vectors)
    alone = np.vstack([embedded(folder, text) for text in TEXTS])
    np.testing.assert_array_equal(embedded(folder, *TEXTS), alone)


def test_weights_and_a_mapping_of_tokens_are_those_of_model2vec(tmp_path):
    """A token's vector is weights[token] * embeddings[mapping[token]]; either may be absent."""
    rows = np.array([[0, 1], [1, 0]], np.float32)
    mapping, weights = np.array([0, 1, 0, 0]), np.array([1.0, 2.0, 1.0, 0.5])
    mapped = folder_of(tmp_path / "mapped", embeddings=rows, mapping=mapping)
    np.testing.assert_allclose(embedded(mapped, "a b c"), [unit(1, 2)], atol=1e-7)
    both = folder_of(tmp_path / "both", embeddings=rows, mapping=mapping, weights=weights)
    np.testing.assert_allclose(embedded(both, "a b c"), [unit(2, 1.5)], atol=1e-7)
    weighted = folder_of(tmp_path / "w", **{"embedding.weight": VECTORS, "weights": weights})
    np.testing.assert_allclose(embedded(weighted, "a b c"), [unit(2, 2.5)], atol=1e-7)


def test_the_unknown_token_of_every_kind_of_tokenizer_counts_nothing(tmp_path):
    """Unigram has its number where the others have its text."""
    pieces = [(word, -1.0) for word in WORDS]
    unigram = folder_of(tmp_path / "u", model=models.Unigram(pieces, unk_id=0))
    wordpiece = folder_of(tmp_path / "p", model=models.WordPiece(WORDS, unk_token="[UNK]"))
    none = folder_of(tmp_path / "n", model=models.BPE({"a": 0, "b": 1, "c": 2, "d": 3}, []))
    for folder in (unigram, wordpiece):
        np.testing.assert_allclose(embedded(folder, "a ?"), [unit(1, 0)], atol=1e-7)
    np.testing.assert_allclose(embedded(none, "a ?"), [unit(9, 9)], atol=1e-7)


def test_texts_beyond_max_tokens_are_cut_and_reported(tmp_path):
    """The tokenizer's own limit is not used."""
    encoded = WordVectorEncoder(folder_of(tmp_path), max_tokens=3).encode(["a a a b", "a a b"])
    np.testing.assert_allclose(encoded.embeddings, [unit(1, 0), unit(2, 1)], atol=1e-7)
    assert encoded.truncated.tolist() == [True, False]


def test_the_vectors_of_the_package_need_no_hub_and_none_of_its_code():
    """Questions of one kind are nearer to each other than to another kind."""
    script = (
        "import sys; from racer_core.encoder.word_vectors import WordVectorEncoder\n"
        "a, b, c = WordVectorEncoder('wordllama').encode(["
        "'What is 17 plus 25?', 'Add 31 and 12.', 'Who wrote the opera Fidelio?']).embeddings\n"
        "assert a @ b > max(a @ c, b @ c); assert len(a) == 256\n"
        "assert not {'wordllama', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    """One line says what to install."""
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(ArtifactError, match="pip install wordllama"):
        WordVectorEncoder("wordllama")


@pytest.mark.parametrize("lexical", [False, True])
def test_an_artifact_with_word_vectors_serves_without_torch(tmp_path, lexical):
    """Another process gives the same scores, and imports neither torch nor transformers."""
    rows, validation = synthetic_rows(80, seed=1), synthetic_rows(60, seed=2)
    words = sorted({word for query in rows.queries for word in query.split()})
    vectors = np.random.default_rng(2).normal(size=(len(words) + 1, 8)).astype(np.float32)
    numbers = {word: i for i, word in enumerate(["[UNK]", *words])}
    folder = folder_of(tmp_path / "vectors", numbers, embeddings=vectors)
    encoder = EncoderChoice(name=folder, lexical=lexical).open()
    assert isinstance(encoder, HybridEncoder) == lexical
    artifact = train(rows, validation, tmp_path / "router", encoder=encoder, kind="knn")
    assert (artifact.encoder.kind, artifact.encoder.backend) == ("word-vectors", "numpy")
    program = (
        "import json, sys; from racer_core.racer import Racer\n"
        "scores = Racer.load(sys.argv[1]).score(sys.argv[2:]).scores.tolist()\n"
        "print(json.dumps([scores, 'torch' in sys.modules or 'transformers' in sys.modules]))"
    )
    queries = validation.queries[:5]
    command = [sys.executable, "-c", program, str(tmp_path / "router"), *queries]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    scores = Racer(artifact, encoder).score(queries).scores.tolist()
    assert json.loads(done.stdout) == [scores, False]


def test_other_files_are_not_the_encoder_of_the_artifact(tmp_path):
    """The digest is that of the vectors and the tokenizer, wherever they lie."""
    spec = WordVectorEncoder(folder_of(tmp_path / "a")).spec
    copy = WordVectorEncoder(folder_of(tmp_path / "copy")).spec
    assert copy.digest == spec.digest
    folder_of(tmp_path / "a", embeddings=VECTORS + 1)
    with pytest.raises(ArtifactError, match=r"digest .* became"):
        artifacts.open_encoder(spec)
    folder_of(tmp_path / "a", {**WORDS, "a": 2, "b": 1})
    with pytest.raises(ArtifactError, match=r"digest .* became"):
        artifacts.open_encoder(spec)


def test_only_folders_with_vectors_are_read_as_such(tmp_path, tiny_encoder):
    """A transformer's folder, a hub name and a damaged file are not."""
    folder = folder_of(tmp_path / "vectors")
    assert has_word_vectors(folder)
    assert not has_word_vectors(tiny_encoder)
    assert not has_word_vectors("microsoft/mdeberta-v3-base")
    Path(folder, "model.safetensors").write_bytes(b"damaged")
    assert not has_word_vectors(folder)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"embeddings": VECTORS[:3]}, "those of the 4 tokens of tokenizer.json: take all"),
        ({"embeddings": VECTORS[0]}, "those of the 4 tokens"),
        ({"embeddings": VECTORS, "weights": np.ones(3)}, "those of the 4 tokens"),
        ({"embeddings": VECTORS, "mapping": np.array([0, 1, 2, 4])}, "do not exist"),
        ({"embeddings": VECTORS + np.inf}, "not all finite"),
        ({"other": VECTORS}, "has none of"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(tmp_path, tensors, words):
    """Every message says what the folder must hold."""
    with pytest.raises(ArtifactError, match=words):
        WordVectorEncoder(folder_of(tmp_path, **tensors))


def test_a_folder_without_its_tokenizer_is_refused(tmp_path):
    """Missing, or damaged."""
    vocabulary = Path(folder_of(tmp_path), "tokenizer.json")
    vocabulary.write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json is damaged"):
        WordVectorEncoder(str(tmp_path))
    vocabulary.unlink()
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: .*No such file"):
        WordVectorEncoder(str(tmp_path))
