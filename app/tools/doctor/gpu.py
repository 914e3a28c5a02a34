"""Check of the GPU: torch can use it if the encoder needs it."""

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
    """The GPUs of this machine, as torch and the driver report them."""

    built_for: str | None  # the CUDA version of torch's build; None: a CPU build
    devices: tuple[str, ...]  # names of the GPUs that torch can use
    complaint: str = ""  # torch's warning during the search
    driver: bool = False  # NVIDIA's driver is loaded, whether or not torch can use it


def inspect() -> GpuStatus:
    """Ask torch for its devices, and capture its warnings."""
    import torch

    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            devices = tuple(torch.cuda.get_device_name(number) for number in range(count))
        except RuntimeError:  # the device is in the exclusive use of another process
            devices = ()
    return GpuStatus(
        built_for=torch.version.cuda,
        devices=devices,
        complaint=" ".join(str(each.message) for each in messages),
        driver=_DRIVER.exists(),
    )


def check(machine: GpuStatus, backend: str | None) -> Finding:
    """Compare the GPUs with what the encoder needs.

    Args:
        machine: The GPUs of this machine.
        backend: The encoder's backend; None if there is no artifact yet.
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
            "there is a GPU, but this build of torch supports only the CPU",
            "install torch's CUDA build (TORCH_INDEX in the Makefile)",
        )
    if machine.driver:
        cure = "check `nvidia-smi`, and whether CUDA_VISIBLE_DEVICES hides the GPU"
        return bad(CHECK, "the driver is loaded, but torch finds no GPU", cure)
    if backend == "cuda":
        cure = "serve on a machine with a GPU, or run `racer train --backend cpu`"
        return failed(CHECK, "no GPU, and the encoder was trained for one", cure)
    return ok(CHECK, "none; the encoder runs on the CPU")
