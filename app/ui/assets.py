"""Static files of the page, read and compressed on first use and then cached.

Files are served from a table of names: no path of a request becomes a path of a file. Plotly's
script comes from the installed package, whose Python code is never imported.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PAGE: Final = ""  # the document; `/ui/{name}` has a name, so it is found at /ui alone
PLOTLY: Final = "plotly.js"
_KINDS: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A static file.

    Attributes:
        packed: The bytes, compressed with gzip.
        kind: Content type.
        etag: Depends only on the bytes, not on gateway or encoding.
    """

    packed: bytes
    kind: str
    etag: str

    @property
    def plain(self) -> bytes:
        """The uncompressed bytes, for clients without gzip."""
        return gzip.decompress(self.packed)


class Assets:
    """The page's files by name."""

    def __init__(self) -> None:
        here = Path(__file__).parent.iterdir()
        self._paths = {path.name: path for path in here if path.suffix in _KINDS}
        self._paths[PAGE] = self._paths.pop("index.html")
        self._paths[PLOTLY] = _plotly()
        self._cached: dict[str, Asset] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._paths))

    async def find(self, name: str) -> Asset | None:
        """The file of this name, if there is one."""
        if name not in self._cached and name in self._paths:
            self._cached[name] = await asyncio.to_thread(_read, self._paths[name])
        return self._cached.get(name)


def _read(path: Path) -> Asset:
    data = path.read_bytes()
    return Asset(
        packed=gzip.compress(data, mtime=0),
        kind=_KINDS[path.suffix],
        etag=f'W/"{hashlib.sha256(data).hexdigest()[:32]}"',
    )


def _plotly() -> Path:
    """Path of the minified script, found without importing the package."""
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"
