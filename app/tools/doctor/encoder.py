"""Check of the encoder: the one of the artifact opens on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.tools.doctor.finding import Finding, failed, ok, warning
from racer_core import artifacts
from racer_core.encoder.base import EncoderSpec
from racer_core.encoder.hub import cached_folder, download_command
from racer_core.errors import ArtifactError

CHECK = "encoder"


def check(spec: EncoderSpec) -> Finding:
    """Open the encoder as a start does, but without a download."""
    local = _local_spec(spec)
    if local is None:
        return warning(
            CHECK,
            f"{spec.name} is not on this machine: the first start downloads it from the hub",
            f"run `{download_command(spec.name, spec.pin)}` first, or `racer validate`",
        )
    try:
        opened = artifacts.open_encoder(local).spec
    except ArtifactError as exc:
        cure = "restore the encoder's folder and its device, or run `racer train` again"
        return failed(CHECK, str(exc), cure)
    return ok(CHECK, f"{spec.name}, {opened.dtype} on {opened.backend}")


def _local_spec(spec: EncoderSpec) -> EncoderSpec | None:
    """The encoder as a local folder; None if it is a hub name that was never downloaded."""
    if spec.kind != "huggingface" or Path(spec.name).is_absolute():
        return spec
    found = cached_folder(spec.name, spec.pin)
    if found is None:
        return None
    if spec.pin is None:  # its name alone might download a newer commit
        return replace(spec, name=str(found))
    return spec
