"""Weights in ``pytorch_model.bin``, converted once to safetensors by a sandboxed process.

Converted weights lie in the assets folder of the hub's cache, by the digest of their source.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from racer_core.errors import ArtifactError
from racer_core.sandbox import SandboxedProcess

PICKLED: Final = "pytorch_model.bin"
SAFETENSORS: Final = "model.safetensors"
_MESSAGE_BYTES: Final = 4096


def converted(weights: Path, digest: str) -> Path:
    """The folder with these weights as ``model.safetensors``; converts them the first time.

    Args:
        weights: A file in torch's old format, a pickle.
        digest: Its sha256, which was compared with the expected one.

    Raises:
        ArtifactError: The file holds more than tensors or is damaged, or the cache cannot be
            written.
    """
    from huggingface_hub import cached_assets_path

    try:
        folder = cached_assets_path("racer", "safetensors", digest)
        if not (folder / SAFETENSORS).exists():
            with TemporaryDirectory(prefix="convert-", dir=folder) as scratch:
                _convert(weights, Path(scratch, SAFETENSORS)).replace(folder / SAFETENSORS)
    except (OSError, ValueError) as exc:
        raise ArtifactError(
            f"{weights} is converted once into the hub's cache, which cannot be written "
            f"({exc}): set $HF_HOME to a folder that can"
        ) from exc
    return folder


def _convert(weights: Path, target: Path) -> Path:
    with SandboxedProcess(
        "racer_core.encoder.pickled_weights_process",
        [str(weights.resolve()), str(target)],
        message_bytes=_MESSAGE_BYTES,
    ) as process:
        try:
            message = process.receive() or {"refused": "the process ended"}
        except ValueError as exc:
            message = {"refused": str(exc)}
        else:
            process.wait()
    if "refused" in message:
        raise ArtifactError(
            f"{weights} is not converted: it holds more than tensors, is damaged, or needs more "
            f"memory than there is ({message['refused']}). Delete it and download it again, or "
            f"pass a folder with {SAFETENSORS}"
        )
    target.chmod(0o644)  # the gateway may run as another user
    return target
