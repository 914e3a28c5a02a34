"""The encoder on a CUDA device: what `auto` chooses there, that it embeds alike, and its graphs."""

import numpy as np
import pytest

from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.pooling import pool
from tests.core.deberta_models import MOST, SHAPES, deberta, model, texts
from tests.kit.lazy import LazyModule

torch = LazyModule("torch")
graphs = LazyModule("racer_core.encoder.graphs")

pytestmark = pytest.mark.gpu
LENGTHS = [(1,), (16,), (17, 3), (MOST,), (MOST, 1, 33, 5, 9)]


def test_a_gpu_is_taken_in_bfloat16_and_agrees_with_the_cpu(tiny_encoder):
    """Cosines between both embeddings of a text stay above 0.99; a wrong pooling falls below."""
    texts = ["a", "a b c d e f g h", "h g"]
    gpu, cpu = HuggingFaceEncoder(tiny_encoder), HuggingFaceEncoder(tiny_encoder, backend="cpu")
    assert (gpu.spec.backend, gpu.spec.dtype) == ("cuda", "bfloat16")
    cosines = np.sum(gpu.encode(texts).embeddings * cpu.encode(texts).embeddings, axis=1)
    assert (cosines > 0.99).all()


def exact(ids, mask):
    """What transformers embeds in float32 on the CPU, each of length 1."""
    with torch.inference_mode():
        hidden = model()(input_ids=ids, attention_mask=mask).last_hidden_state
        return unit(pool(hidden, mask, "mean"))


def unit(rows):
    """Each of length 1."""
    return torch.nn.functional.normalize(rows, dim=1)


def opened(dtype, shapes):
    """The lean forward by graphs of these shapes; without any, by none."""
    lean = deberta.LeanDeberta(model(dtype).to("cuda"), MOST)
    return graphs.Graphs(graphs.embedder(lean, "mean"), shapes=shapes, device="cuda")


@pytest.fixture(scope="module")
def recorded():
    """In bfloat16, of every shape."""
    return opened(torch.bfloat16, SHAPES)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_graphs_agree_with_transformers_in_float32(recorded, lengths):
    """In float32 to the rounding of TF32; in bfloat16 to a cosine above 0.99."""
    ids, mask = texts(*lengths)
    fine = opened(torch.float32, SHAPES)(ids, mask)
    np.testing.assert_allclose(unit(fine), exact(ids, mask), atol=1e-3)
    cosines = (unit(recorded(ids, mask)) * exact(ids, mask)).sum(1)
    assert (cosines > 0.99).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_replay_gives_what_the_same_kernels_give_without_a_graph(recorded, shape):
    """Batches of a recorded shape, different ones one after the other: nothing is left over."""
    plain = opened(torch.bfloat16, ())
    for seed in range(3):
        rng = torch.Generator().manual_seed(seed)
        ids = torch.randint(5, 100, shape, generator=rng)
        mask = (
            torch.arange(shape[1]) <= torch.randint(shape[1], (shape[0], 1), generator=rng)
        ).long()
        np.testing.assert_allclose(
            unit(recorded(ids, mask)), unit(plain(ids, mask)), atol=2e-3
        )  # a library may choose another kernel while it is recorded


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_encoder_opens_with_graphs_for_the_lean_forward(tiny_encoder, dtype):
    """Its rows come back in order, from recorded shapes and from others."""
    rng = np.random.default_rng(5)
    queries = [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 80))) for _ in range(70)]
    options = {"backend": "cuda", "dtype": dtype}
    lean = HuggingFaceEncoder(tiny_encoder, **options, forward="lean")
    fine = HuggingFaceEncoder(tiny_encoder, backend="cpu", dtype="float32")
    cosines = np.sum(lean.encode(queries).embeddings * fine.encode(queries).embeddings, axis=1)
    assert lean.spec.forward == "lean"
    assert (cosines > 0.99).all()
