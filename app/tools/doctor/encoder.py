"""Whether the encoder that the router was trained with can be opened here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.tools.doctor.finding import Finding, failed, ok, warning
from racer_core import artifacts
from racer_core.encoder.base import EncoderSpec
from racer_core.errors import ArtifactError

CHECK = "encoder"


def check(spec: EncoderSpec) -> Finding:
    """Opens it as a start would, but downloads nothing."""
    here = _here(spec)
    if here is None:
        return warning(
            CHECK,
            f"{spec.name} is not on this machine: the first start downloads it from the hub",
            f"`hf download {spec.name}` before, or `racer validate`",
        )
    try:
        opened = artifacts.open_encoder(here).spec
    except ArtifactError as exc:
        cure = "restore its folder and this machine's device, or `racer train` again"
        return failed(CHECK, str(exc), cure)
    return ok(CHECK, f"{spec.name}, {opened.dtype} on {opened.backend}")


def _here(spec: EncoderSpec) -> EncoderSpec | None:
    """The same as a folder; None where it is a name on the hub that was never downloaded."""
    if spec.kind != "huggingface" or Path(spec.name).is_absolute():
        return spec
    from transformers.utils.hub import cached_file  # pyright: ignore[reportUnknownVariableType]

    try:
        found = cached_file(spec.name, "config.json", local_files_only=True)
    except OSError:
        return None
    return replace(spec, name=str(Path(str(found)).parent))
