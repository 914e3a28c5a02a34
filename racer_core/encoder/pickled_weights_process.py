"""Converter process: rewrites ``pytorch_model.bin`` as safetensors, in a sandbox.

    python -m racer_core.encoder.pickled_weights_process SOURCE TARGET

The source is a pickle. torch's restricted unpickler takes nothing but tensors and plain containers
from it. A bug of that unpickler, or a file that unpacks to far more than its size, harms this
process alone. The only module that calls ``torch.load``; no other module imports it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

from racer_core.sandbox import address_space, enter_sandbox, send_message

# Above what the interpreter has taken: the tensors are held twice, and their pages may be counted
# a third time while they are read.
MEMORY_BYTES: Final = 2**30
MEMORY_PER_BYTE: Final = 4
CPU_S: Final = 600


def main() -> None:
    """Limit this process, convert the file and say how many tensors there are."""
    source, target = map(Path, sys.argv[1:])
    memory = MEMORY_BYTES + MEMORY_PER_BYTE * source.stat().st_size
    enter_sandbox(memory_bytes=address_space() + memory, cpu_s=CPU_S)
    try:
        weights: dict[str, Any] = torch.load(source, map_location="cpu", weights_only=True)
        # Copies, since safetensors refuses parameters that share memory.
        tensors = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in weights.items()
        }
        save_file(tensors, target, metadata={"format": "pt"})
    except Exception as exc:
        send_message({"refused": type(exc).__name__})  # its text may repeat the file's
        raise
    send_message({"tensors": len(tensors)})


if __name__ == "__main__":
    main()
