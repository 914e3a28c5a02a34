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


def test_the_lean_forward_agrees_with_transformers_on_a_gpu(tiny_encoder):
    """In float32, with padding; on a GPU it is taken only by whoever asks for it."""
    texts = ["a", "a b c d e f g h", "h g"]
    options = {"backend": "cuda", "dtype": "float32"}
    lean = HuggingFaceEncoder(tiny_encoder, **options, forward="lean").encode(texts).embeddings
    theirs = HuggingFaceEncoder(tiny_encoder, **options).encode(texts).embeddings
    np.testing.assert_allclose(lean, theirs, atol=1e-3)  # products may be rounded to TF32
