"""Hybrid encoder of meaning and spelling: one embedding, one identity, one cache."""

import json
from dataclasses import replace

import numpy as np
import pytest

from app.tools.evaluation import with_cache
from racer_core import artifacts
from racer_core.encoder.base import EncoderOutput
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.hybrid import HybridEncoder
from racer_core.errors import ArtifactError
from racer_core.offline.embeddings import CachedEncoder
from racer_core.offline.train import EncoderChoice, train
from racer_core.racer import Racer
from tests.kit.synthetic import synthetic_rows

TEXTS = ["a b c", "a b", "h g f e", "abc abd", "unheard words"]


def opened(folder, **options):
    """The hybrid in float32 on the CPU."""
    return EncoderChoice(
        name=str(folder), backend="cpu", dtype="float32", lexical=True, **options
    ).open()


@pytest.fixture(scope="module")
def hybrid(tiny_encoder):
    """The tiny encoder beside the n-grams."""
    return opened(tiny_encoder)


def cosines(encoder):
    """Of all pairs of the texts."""
    embeddings = encoder.encode(TEXTS).embeddings.astype(np.float64)
    return embeddings @ embeddings.T


def test_a_cosine_is_the_mean_of_the_two_cosines(hybrid):
    """Neither part has more weight than the other."""
    semantic, lexical = cosines(hybrid.semantic), cosines(CharNgramEncoder())
    np.testing.assert_allclose(cosines(hybrid), (semantic + lexical) / 2.0, atol=1e-6)
    assert np.abs(semantic - lexical).max() > 0.1  # so that one of them alone would show


def test_its_identity_is_the_semantic_encoders_but_for_the_mark(hybrid):
    """Everything else must match when serving, too."""
    assert hybrid.spec == replace(hybrid.semantic.spec, lexical=True)
    assert not hybrid.semantic.spec.lexical


@pytest.fixture(scope="module")
def artifact(hybrid, tmp_path_factory):
    """A router trained on the hybrid."""
    folder = tmp_path_factory.mktemp("hybrid")
    train(synthetic_rows(40, seed=61), synthetic_rows(20, seed=62), folder,
          encoder=hybrid, kind="knn")  # fmt: skip
    return folder


def test_an_artifact_opens_the_same_encoder_again(artifact, hybrid):
    """The mark is in the manifest; embeddings agree to the last bit."""
    racer = Racer.load(artifact)
    assert isinstance(racer.encoder, HybridEncoder)
    assert racer.encoder.spec.digest == hybrid.spec.digest
    np.testing.assert_array_equal(
        racer.encoder.encode(TEXTS).embeddings, hybrid.encode(TEXTS).embeddings
    )


def test_an_artifact_of_another_mark_is_refused(artifact, tmp_path):
    """Without the n-grams the embeddings would not fit the router's: one sentence at start."""
    for name in ("manifest.json", "router.safetensors"):
        (tmp_path / name).write_bytes((artifact / name).read_bytes())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["encoder"]["lexical"] is True
    manifest["encoder"] |= {"lexical": False, "name": artifacts.load(artifact).encoder.name}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="does not fit the encoder") as caught:
        Racer.load(tmp_path)
    assert "\n" not in str(caught.value)


class Counting:
    """A semantic encoder that records its texts."""

    def __init__(self, spec):
        self.spec = spec
        self.encoded_texts = []

    def encode(self, texts):
        """One direction for all texts."""
        self.encoded_texts += texts
        embeddings = np.zeros((len(texts), 3), dtype=np.float32)
        embeddings[:, 1] = 1.0
        return EncoderOutput(embeddings, np.zeros(len(texts), dtype=bool))


def test_the_cache_stands_in_front_of_the_semantic_half(hybrid, tmp_path):
    """Asked once; the n-grams are computed anew, so the embeddings stay the same."""
    file = str(tmp_path / "cache.sqlite")
    first, second = Counting(hybrid.semantic.spec), Counting(hybrid.semantic.spec)
    fresh = with_cache(HybridEncoder(first), file)
    assert isinstance(fresh, HybridEncoder)
    assert isinstance(fresh.semantic, CachedEncoder)
    assert fresh.spec == hybrid.spec
    embeddings = fresh.encode(TEXTS).embeddings
    cached = with_cache(HybridEncoder(second), file).encode(TEXTS).embeddings
    assert (first.encoded_texts, second.encoded_texts) == (TEXTS, [])
    np.testing.assert_array_equal(embeddings, cached)
    np.testing.assert_array_equal(
        embeddings, HybridEncoder(Counting(hybrid.spec)).encode(TEXTS).embeddings
    )
