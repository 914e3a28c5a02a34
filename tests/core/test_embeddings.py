"""Embedding cache on disk: each text is encoded once, and files of other encoders are not read."""

from dataclasses import replace

import numpy as np
import pytest

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError
from racer_core.offline.embeddings import CachedEncoder, default_cache

TEXTS = ["one", "two", "three", "ünïcode 🚂", "one"]


class Counting:
    """An encoder that records its texts and marks long ones as truncated."""

    def __init__(self, **changes):
        self.inside = CharNgramEncoder()
        self.spec = replace(self.inside.spec, **changes)
        self.encoded_texts = []

    def encode(self, texts):
        """Embed and remember."""
        self.encoded_texts += texts
        encoded = self.inside.encode(texts)
        return replace(encoded, truncated=np.array([len(text) > 3 for text in texts], dtype=bool))


def test_a_second_run_does_not_call_the_encoder(tmp_path):
    """The same vectors and marks, to the last bit, from another process's point of view."""
    file = tmp_path / "folder" / "cache.sqlite"
    first, second = Counting(), Counting()
    fresh = CachedEncoder(first, file).encode(TEXTS)
    cached = CachedEncoder(second, file).encode(TEXTS[::-1])
    assert second.encoded_texts == []
    plain = Counting().encode(TEXTS)
    for stored in (fresh, replace(cached, embeddings=cached.embeddings[::-1])):
        np.testing.assert_array_equal(stored.embeddings, plain.embeddings)
    np.testing.assert_array_equal(fresh.truncated, plain.truncated)
    np.testing.assert_array_equal(cached.truncated[::-1], plain.truncated)


def test_only_what_is_new_is_embedded(tmp_path):
    """Texts that are known stay known."""
    encoder = Counting()
    cached = CachedEncoder(encoder, tmp_path / "cache.sqlite")
    cached.encode(TEXTS[:2])
    cached.encode([*TEXTS[:2], "new"])
    assert encoder.encoded_texts == ["one", "two", "new"]


@pytest.mark.parametrize(
    "changes", [{"digest": "other"}, {"max_tokens": 8}, {"dtype": "bfloat16"}, {"lexical": True}]
)
def test_another_encoder_has_embeddings_of_its_own(tmp_path, changes):
    """Model, limits and number format are part of the key; where the model lies is not."""
    file = tmp_path / "cache.sqlite"
    CachedEncoder(Counting(), file).encode(TEXTS)
    other, moved = Counting(**changes), Counting(name="elsewhere")
    CachedEncoder(other, file).encode(TEXTS[:1])
    CachedEncoder(moved, file).encode(TEXTS[:1])
    assert (other.encoded_texts, moved.encoded_texts) == (["one"], [])


@pytest.mark.parametrize("damage", ["text", "folder", "foreign", "cut"])
def test_a_damaged_file_is_one_sentence(tmp_path, damage):
    """Not a traceback of SQLite's; the file is named."""
    file = tmp_path / "cache.sqlite"
    if damage == "text":
        file.write_text("these are no embeddings, and longer than a header" * 100)
    elif damage == "folder":
        file.mkdir()
    elif damage == "foreign":
        file.parent.joinpath("file").write_text("")
        file = tmp_path / "file" / "cache.sqlite"
    else:
        CachedEncoder(Counting(), file).encode([f"text {i}" for i in range(500)])
        file.write_bytes(file.read_bytes()[:5_000])
    with pytest.raises(InputError, match=str(file)) as caught:
        CachedEncoder(Counting(), file).encode([f"text {i}" for i in range(500)])
    assert "\n" not in str(caught.value)


def test_the_cache_lies_with_the_user_s_other_caches(tmp_path, monkeypatch):
    """Where XDG says, or below ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "racer" / "embeddings.sqlite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "racer" / "embeddings.sqlite"
