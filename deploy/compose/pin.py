"""Pins the images of `.env` by digest: a tag can change, a digest cannot.

    python3 deploy/compose/pin.py [.env]

Every line `..._IMAGE=NAME:TAG` becomes `NAME:TAG@sha256:...`, by what the registry has under the
tag now. The same command again takes newer ones; a digest without a tag stays as it is. It needs
Python, and registries without a login.
"""

from __future__ import annotations

import json
import os
import re
import sys
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

TIMEOUT_S = 30
LINE = re.compile(r"^(?P<name>\w+_IMAGE)=(?P<image>[^\s@]+)(?P<digest>@\S+)?$", re.MULTILINE)
KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class NotPinned(Exception):
    """A digest cannot be had; the text says why."""


def pinned(text: str) -> str:
    """The lines of `.env` with the digests of today. Raises NotPinned."""
    return LINE.sub(_pinned, text)


def _pinned(line: re.Match[str]) -> str:
    image = line["image"]
    if line["digest"] is not None and ":" not in image.rpartition("/")[2]:
        return line[0]  # which tag it was taken from is not known
    return f"{line['name']}={image}@{digest(image)}"


def digest(image: str) -> str:
    """What a registry has under a tag, for all its platforms. Raises NotPinned."""
    host, path, tag = parts(image)
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    url = f"{scheme}://{host}/v2/{path}/manifests/{tag}"
    headers = {"accept": ", ".join(KINDS)}
    try:
        try:
            found = _head(url, headers)
        except HTTPError as exc:
            challenge = exc.headers.get("www-authenticate", "")
            if exc.code != 401 or not challenge.lower().startswith("bearer "):
                raise
            found = _head(url, headers | {"authorization": f"Bearer {_token(challenge, scheme)}"})
    except (URLError, HTTPException, OSError, ValueError, KeyError) as exc:
        raise NotPinned(f"{image}: {host} does not say its digest ({exc})") from exc
    if re.fullmatch(r"sha256:[0-9a-f]{64}", found or "") is None:
        raise NotPinned(f"{image}: {host} answers without a digest")
    return str(found)


def parts(image: str) -> tuple[str, str, str]:
    """Registry, repository and tag of a name, which without a registry is one of Docker Hub."""
    host, _, path = image.partition("/")
    if path == "" or not ("." in host or ":" in host or host == "localhost"):
        host, path = "registry-1.docker.io", image if path else f"library/{image}"
    path, _, tag = path.partition(":")
    return host, path, tag or "latest"


def _head(url: str, headers: dict[str, str]) -> str | None:
    with urlopen(Request(url, headers=headers, method="HEAD"), timeout=TIMEOUT_S) as response:
        return response.headers.get("docker-content-digest")


def _token(challenge: str, scheme: str) -> str:
    """A token for reading; public registries give it without a login."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    if not realm.startswith(f"{scheme}://"):
        raise ValueError(f"its tokens come from {realm!r}")
    with urlopen(f"{realm}?{urlencode(fields)}", timeout=TIMEOUT_S) as response:
        given = json.load(response)
    return given.get("token") or given["access_token"]


def main() -> None:
    """Replace the file, whole or not at all."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else ".env")
    try:
        text = path.read_text(encoding="utf-8")
        if LINE.search(text) is None:
            raise NotPinned("it has no line such as VLLM_IMAGE=vllm/vllm-openai:v0.32.0")
        new = pinned(text)
    except (OSError, NotPinned) as exc:
        sys.exit(f"{path} is as before: {exc}")
    mode = path.stat().st_mode
    unfinished = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(new)
    unfinished.chmod(mode)
    unfinished.replace(path)
    sys.stdout.write("".join(f"{match[0]}\n" for match in LINE.finditer(new)))


if __name__ == "__main__":
    main()
