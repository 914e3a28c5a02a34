"""Address of an artifact that is fetched: the URL of a tar file, with its digest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

from app.settings.base import is_loopback

_DIGEST: Final = re.compile(r"sha256=([0-9a-f]{64})")
_EXPECTED: Final = (
    "artifact: expected a folder, or the URL of a tar file with its digest: "
    "https://HOST/PATH.tar.gz#sha256=DIGEST or s3://BUCKET/KEY#sha256=DIGEST"
)


@dataclass(frozen=True, slots=True)
class RemoteArtifact:
    """Where a tar file is, and what it must be.

    Attributes:
        url: Without the digest.
        sha256: Of the file, hexadecimal.
    """

    url: str
    sha256: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a setting; None if it is no URL but a path.

        Raises:
            ValueError: It is a URL of another kind, or has no digest.
        """
        if "://" not in text:
            return None
        try:
            parts = urlsplit(text)
            host, has_user = parts.hostname, parts.username is not None
        except ValueError as exc:  # an unclosed bracket
            raise ValueError(_EXPECTED) from exc
        if has_user:
            raise ValueError("artifact: the URL must hold no user or password")
        is_local = parts.scheme == "http" and host is not None and is_loopback(host)
        if not host or not (parts.scheme in ("https", "s3") or is_local):
            raise ValueError(_EXPECTED)
        digest = _DIGEST.fullmatch(parts.fragment)
        if digest is None:
            raise ValueError(
                f"{_EXPECTED}; `sha256sum FILE` prints the 64 hexadecimal digits of a digest"
            )
        return cls(urlunsplit(parts._replace(fragment="")), digest[1])

    @property
    def shown(self) -> str:
        """The URL without its query, which may hold a secret."""
        return urlunsplit(urlsplit(self.url)._replace(query=""))

    def folder(self, cache: Path) -> Path:
        """Where the unpacked artifact is."""
        return cache / "artifacts" / self.sha256
