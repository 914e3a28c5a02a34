"""Whether torch sees the GPU, and whether anybody needs it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.tools.doctor.finding import Finding, failed, ok, warning

CHECK = "GPU"
_DRIVER: Final = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """What there is."""

    built_for: str | None  # the CUDA version of torch's build; None: it is the CPU's
    devices: tuple[str, ...]  # that torch can use
    complaint: str = ""  # torch's, while it looked for them
    driver: bool = False  # NVIDIA's is loaded, whatever torch thinks of it


def look() -> GpuStatus:
    """Ask torch, and hear what it would have printed."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            devices = tuple(torch.cuda.get_device_name(number) for number in range(count))
        except RuntimeError:  # it is there, and somebody else's alone
            devices = ()
    return GpuStatus(
        built_for=torch.version.cuda,
        devices=devices,
        complaint=" ".join(str(each.message) for each in said),
        driver=_DRIVER.exists(),
    )


def check(machine: GpuStatus, backend: str | None) -> Finding:
    """The finding.

    Args:
        machine: What there is.
        backend: What the encoder needs; None where none is trained yet.
    """
    if machine.devices:
        used = "" if backend in (None, "cuda") else "; the encoder does not use it"
        return ok(CHECK, f"{', '.join(machine.devices)} (CUDA {machine.built_for}){used}")
    bad = failed if backend == "cuda" else warning
    if "driver" in machine.complaint and "too old" in machine.complaint:
        return bad(
            CHECK,
            f"the driver is too old for torch's build (CUDA {machine.built_for})",
            "install a newer driver, or torch for an older CUDA (TORCH_INDEX in the Makefile)",
        )
    if machine.built_for is None and machine.driver:
        return bad(
            CHECK,
            "there is a GPU, and torch is built for the CPU alone",
            "install torch's CUDA build (TORCH_INDEX in the Makefile)",
        )
    if machine.driver:
        cure = "see what `nvidia-smi` says, and whether CUDA_VISIBLE_DEVICES hides it"
        return bad(CHECK, "the driver is loaded, and torch finds no GPU", cure)
    if backend == "cuda":
        cure = "serve where a GPU is, or `racer train --backend cpu`"
        return failed(CHECK, "none, and the encoder was trained for one", cure)
    return ok(CHECK, "none; the encoder runs on the CPU")
