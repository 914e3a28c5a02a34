"""Training checkpoint: one safetensors file, replaced atomically. Never pickle.

The file holds parameters, the optimiser's moments and further tensors of a training; its header
holds the rest as JSON. No random generator is stored: a step's draws follow from the seed and the
step's number.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from racer_core import strict_json
from racer_core.errors import ArtifactError, InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

FILE: Final = "checkpoint.safetensors"
_HEADER: Final = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The progress of an interrupted training."""

    losses: list[float]  # one a step done
    kept: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The stored state of a training, and the identity that it belongs to.

    Attributes:
        folder: A separate folder, removed when the training is done.
        identity: JSON values that determine the result: settings, seed, digest of the data. A
            training with another identity cannot resume.
        every: Steps between two saves.
        resume: Continue from an existing checkpoint; False refuses to overwrite it.
    """

    folder: Path
    identity: Mapping[str, Any]
    every: int = 50
    resume: bool = False

    def restore(self, module: nn.Module, optimiser: torch.optim.Optimizer) -> TrainingState | None:
        """Load the saved state into module and optimiser; None if there is no checkpoint.

        Raises:
            ArtifactError: A checkpoint exists and is damaged, belongs to other data or settings, or
                ``resume`` is False.
        """
        if not self._path.is_file():
            return None
        if not self.resume:
            raise ArtifactError(
                f"{self.folder} holds a training that stopped: pass --resume to go on, or remove "
                "that folder to begin anew"
            )
        identity, losses, tensors = self._read()
        self._check(identity)
        parts = {name: _under(name, tensors) for name in ("module", "optimiser", "kept")}
        module.load_state_dict(parts["module"])
        state: dict[int, dict[str, Any]] = {}
        for name, tensor in parts["optimiser"].items():
            number, _, field = name.partition(".")
            state.setdefault(int(number), {})[field] = tensor
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": state, "param_groups": groups})
        return TrainingState(losses=losses, kept=parts["kept"])

    def due(self, step: int, steps: int) -> bool:
        """Whether to save after this step: at every ``every``-th step and at the last."""
        return step % self.every == 0 or step == steps

    def save(
        self,
        module: nn.Module,
        optimiser: torch.optim.Optimizer,
        losses: Sequence[float],
        kept: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Replace the checkpoint atomically: a kill during the write leaves the previous one.

        Raises:
            ArtifactError: The folder cannot be written.
        """
        from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

        tensors = {f"module.{name}": each for name, each in module.state_dict().items()}
        for number, fields in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": each for name, each in fields.items()}
        tensors |= {f"kept.{name}": each for name, each in (kept or {}).items()}
        # Copies, since safetensors refuses parameters that share memory.
        tensors = {name: each.detach().cpu().clone() for name, each in tensors.items()}
        header = json.dumps({"identity": dict(self.identity), "losses": list(losses)})
        new = self._path.with_suffix(".new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, new, metadata={_HEADER: header})
            with new.open("rb") as written:
                os.fsync(written.fileno())
            new.replace(self._path)
        except OSError as exc:
            raise ArtifactError(
                f"checkpoint {self._path} cannot be written: {exc.strerror}"
            ) from exc

    def remove(self) -> None:
        """Delete the checkpoint after training."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _path(self) -> Path:
        return self.folder / FILE

    def _read(self) -> tuple[dict[str, Any], list[float], dict[str, torch.Tensor]]:
        from safetensors import SafetensorError, safe_open

        try:
            with cast(Any, safe_open)(self._path, framework="pt") as file:
                header = strict_json.load_object(file.metadata()[_HEADER].encode())
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return header["identity"], header["losses"], tensors
        except (OSError, SafetensorError, InputError, KeyError, TypeError) as exc:
            raise ArtifactError(
                f"checkpoint {self._path} is damaged ({exc}); remove {self.folder} to begin anew"
            ) from exc

    def _check(self, found: Mapping[str, Any]) -> None:
        wanted = json.loads(json.dumps(dict(self.identity)))
        keys = sorted(wanted.keys() | found.keys())
        differing = [key for key in keys if wanted.get(key) != found.get(key)]
        if differing:
            differences = ", ".join(f"{key} was {found.get(key)!r}" for key in differing)
            raise ArtifactError(
                f"the checkpoint in {self.folder} is of another training ({differences}): train as "
                "it was, or remove that folder to begin anew"
            )


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(f"{prefix}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{prefix}.")
    }
