"""The encoder on a CUDA device: what `auto` chooses there, and that it embeds alike."""

import numpy as np
import pytest
import torch

from racer_core.encoder.huggingface import HuggingFaceEncoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def test_a_gpu_is_taken_in_bfloat16_and_agrees_with_the_cpu(tiny_encoder):
    """Cosines between both embeddings of a text stay above 0.99; a wrong pooling falls below."""
    texts = ["a", "a b c d e f g h", "h g"]
    gpu, cpu = HuggingFaceEncoder(tiny_encoder), HuggingFaceEncoder(tiny_encoder, backend="cpu")
    assert (gpu.spec.backend, gpu.spec.dtype) == ("cuda", "bfloat16")
    cosines = np.sum(gpu.encode(texts).embeddings * cpu.encode(texts).embeddings, axis=1)
    assert (cosines > 0.99).all()
