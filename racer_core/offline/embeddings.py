"""Embedding cache on disk: an encoder never embeds the same text twice.

One SQLite file. A row's key hashes the encoder's identity and the text, so that another model,
dtype or token limit has other rows. Entries never become stale, and the file may be deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from racer_core.encoder.base import Encoder, EncoderOutput, EncoderSpec
from racer_core.errors import InputError

_PIECE = 256


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/racer/embeddings.sqlite``, or the same below ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "racer" / "embeddings.sqlite"


@dataclass(frozen=True, slots=True)
class CachedEncoder:
    """An encoder behind a cache file.

    Attributes:
        encoder: The encoder.
        file: The cache file.

    Raises:
        InputError: The file cannot be opened.
    """

    encoder: Encoder
    file: Path

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's own."""
        return self.encoder.spec

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed the uncached texts, in pieces that are stored as soon as they are done."""
        prefix = json.dumps(self.spec.identity(), sort_keys=True).encode()
        keys = [hashlib.sha256(prefix + b"\0" + text.encode()).digest() for text in texts]
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.file, timeout=30.0)) as cache:
                cache.execute(
                    "CREATE TABLE IF NOT EXISTS embeddings"
                    " (key BLOB PRIMARY KEY, vector BLOB NOT NULL, truncated INTEGER NOT NULL)"
                )
                cached = _cached(cache, keys)
                missing = [i for i, key in enumerate(keys) if key not in cached]
                for at in range(0, len(missing), _PIECE):
                    piece = missing[at : at + _PIECE]
                    encoded = self.encoder.encode([texts[i] for i in piece])
                    cached |= _store(cache, [keys[i] for i in piece], encoded)
        except (OSError, sqlite3.Error) as exc:
            raise InputError(
                f"embeddings {self.file} cannot be used ({exc}): delete the file or name another"
            ) from exc
        if not keys:
            return self.encoder.encode([])
        return EncoderOutput(
            np.stack([np.frombuffer(cached[key][0], np.float32) for key in keys]),
            np.array([cached[key][1] for key in keys], dtype=bool),
        )


_Vectors = dict[bytes, tuple[bytes, int]]


def _cached(cache: sqlite3.Connection, keys: Sequence[bytes]) -> _Vectors:
    cached: _Vectors = {}
    for start in range(0, len(keys), _PIECE):
        part = keys[start : start + _PIECE]
        marks = ",".join("?" * len(part))
        query = f"SELECT key, vector, truncated FROM embeddings WHERE key IN ({marks})"
        cached |= {key: (vector, cut) for key, vector, cut in cache.execute(query, part)}
    return cached


def _store(cache: sqlite3.Connection, keys: Sequence[bytes], encoded: EncoderOutput) -> _Vectors:
    fresh: _Vectors = {
        key: (vector.astype(np.float32).tobytes(), int(cut))
        for key, vector, cut in zip(keys, encoded.embeddings, encoded.truncated, strict=True)
    }
    rows = [(key, vector, cut) for key, (vector, cut) in fresh.items()]
    with cache:
        cache.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)", rows)
    return fresh
