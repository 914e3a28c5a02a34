"""The encoder on a GPU, as far as a CPU can tell: shapes, padding, buffers; not the recording."""

import itertools

import numpy as np
import pytest

from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.pooling import pool
from racer_core.errors import ArtifactError
from tests.core.deberta_models import MOST, SHAPES, deberta, model, texts
from tests.kit.lazy import LazyModule

torch = LazyModule("torch")
fake_tensor = LazyModule("torch._subclasses.fake_tensor")
graphs = LazyModule("racer_core.encoder.graphs")


class ReplayRecorder:
    """Runs again what a GPU would have recorded, and counts; results stay where they are."""

    def __init__(self):
        self.shapes, self.replayed = [], []

    def __call__(self, run):
        """What a recorder gives."""
        results = run()
        mark = len(self.shapes)
        self.shapes.append(tuple(results.shape))

        def replay():
            self.replayed.append(mark)
            results.copy_(run())

        return replay, results


def exact(made, ids, mask, pooling="mean"):
    """What transformers embeds."""
    with torch.inference_mode():
        return pool(made(input_ids=ids, attention_mask=mask).last_hidden_state, mask, pooling)


# Padding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("lengths", [(1,), (16,), (17, 3), (MOST,), (MOST, 1, 33, 5, 9)], ids=str)
@pytest.mark.parametrize("kind", [{}, {"position_biased_input": True, "type_vocab_size": 2}])
def test_padding_to_a_shape_changes_no_embedding(kind, lengths, pooling):
    """To 1e-5, in float32: more tokens, more texts, and what an earlier batch left behind."""
    made = model(**kind)
    run = graphs.Graphs(
        graphs.embedder(deberta.LeanDeberta(made, MOST), pooling),
        shapes=SHAPES,
        device="cpu",
        recorder=ReplayRecorder(),
    )
    run(*texts(*[MOST] * 8))
    for size, tokens in SHAPES:
        run(*texts(*[tokens] * size))  # every buffer is full
    ids, mask = texts(*lengths)
    np.testing.assert_allclose(run(ids, mask), exact(made, ids, mask, pooling), atol=1e-5)


def test_nothing_that_is_recorded_looks_at_a_value():
    """Tensors without values go through: a look would wait for the GPU, which no graph can."""
    lean = deberta.LeanDeberta(model(), MOST)
    embed = graphs.embedder(lean, "mean")
    with torch.inference_mode(), fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        ids = torch.ones((2, 16), dtype=torch.int64)
        assert embed(ids, ids).shape == (2, 32)
        with pytest.raises(fake_tensor.DataDependentOutputException):
            lean(ids, ids)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_aligned_for_the_kernels_of_a_gpu(monkeypatch, shape):
    """To 8 numbers, of the bias and of the products that it is made of."""
    strides, attention, product = [], torch.nn.functional.scaled_dot_product_attention, torch.bmm

    def attending(*args, attn_mask, **options):
        strides.append(attn_mask.stride())
        return attention(*args, attn_mask=attn_mask, **options)

    def multiplying(*factors):
        strides.extend(each.stride() for each in factors)
        strides.append((result := product(*factors)).stride())
        return result

    monkeypatch.setattr(deberta.F, "scaled_dot_product_attention", attending)
    monkeypatch.setattr(deberta.torch, "bmm", multiplying)
    with torch.inference_mode():
        graphs.embedder(deberta.LeanDeberta(model(), MOST), "mean")(*texts(*[shape[1]] * shape[0]))
    assert len(strides) == 3 * (1 + 2 * 3)  # layers: one attention, two products
    for *outer, last in strides:
        assert last == 1
        assert all(stride % 8 == 0 for stride in outer)


# Recordings -------------------------------------------------------------------------------------


def tokens_of(shape):
    """Ids and mask of that shape, nothing padded."""
    return torch.full(shape, 7), torch.ones(shape, dtype=torch.int64)


def test_every_shape_is_recorded_once_and_the_largest_first():
    """At the start, so that no query waits for it; in this order they share the first's memory."""
    made = []

    def embed(ids, mask):
        made.append(tuple(ids.shape))
        return mask.sum(1, keepdim=True).float()

    offered = [(1, 16), (4, 16), (4, 32), (1, 32)]
    recorder = ReplayRecorder()
    run = graphs.Graphs(embed, shapes=offered, device="cpu", recorder=recorder)
    assert made == [(4, 32), (4, 16), (1, 32), (1, 16)]
    for batch in itertools.product((1, 3, 4), (9, 16, 32)):
        assert run(*tokens_of(batch)).tolist() == [[float(batch[1])]] * batch[0]
    assert made[4:] == [made[each] for each in recorder.replayed]
    assert [made[each] for each in recorder.replayed[:3]] == [(1, 16), (1, 16), (1, 32)]
    assert len(recorder.shapes) == 4


# The encoder ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_encoder_embeds_alike_by_graphs(tiny_encoder, pooling):
    """As it would on a GPU, here in float32; cut texts too, more than a batch, in their order."""
    options = {"backend": "cpu", "dtype": "float32", "pooling": pooling}
    rng = np.random.default_rng(5)
    queries = [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 80))) for _ in range(70)]
    plain = HuggingFaceEncoder(str(tiny_encoder), **options).encode(queries)
    recorder = ReplayRecorder()
    encoder = HuggingFaceEncoder(str(tiny_encoder), forward="lean", recorder=recorder, **options)
    found = encoder.encode(queries)
    assert recorder.replayed
    np.testing.assert_allclose(found.embeddings, plain.embeddings, atol=1e-5)
    assert found.truncated.tolist() == plain.truncated.tolist()


def test_a_long_text_leaves_the_short_ones_their_graph(tiny_encoder):
    """Two launches instead of 60 texts padded to the length of one."""
    recorder = ReplayRecorder()
    encoder = HuggingFaceEncoder(
        str(tiny_encoder), backend="cpu", dtype="float32", forward="lean", recorder=recorder
    )
    recorder.replayed.clear()
    encoder.encode([" ".join("abcdefgh" * 8), *["a b c"] * 60])
    assert [recorder.shapes[each] for each in recorder.replayed] == [(1, 32), (64, 32)]


class SmallMemory(ReplayRecorder):
    """Has no memory for a graph of more texts than it can hold."""

    def __init__(self, texts):
        super().__init__()
        self.texts = texts

    def __call__(self, run):
        """What a recorder gives, or what torch raises."""
        replay, results = super().__call__(run)
        if len(results) > self.texts:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB.")
        return replay, results


@pytest.mark.parametrize("most", [0, 4])
def test_graphs_beyond_the_memory_are_left_out_and_said(tiny_encoder, caplog, most):
    """The encoder opens and embeds alike, in batches of recorded shapes, or one by one."""
    options = {"backend": "cpu", "dtype": "float32", "forward": "lean"}
    recorder = SmallMemory(most)
    encoder = HuggingFaceEncoder(str(tiny_encoder), recorder=recorder, **options)
    assert f"memory of cpu is too small for {18 if most else 27} of 27" in caplog.text
    recorder.replayed.clear()
    queries = ["a b", "c d e", "f", "g h a", "b c", *["d e f g h"] * 4]
    found = encoder.encode(queries).embeddings
    assert len(recorder.replayed) == (3 if most else 0)
    assert all(recorder.shapes[each][0] <= most for each in recorder.replayed)
    plain = HuggingFaceEncoder(str(tiny_encoder), **options).encode(queries).embeddings
    np.testing.assert_allclose(found, plain, atol=1e-5)


@pytest.mark.parametrize("step", ["open", "embed"])
def test_too_little_memory_is_an_error_that_says_what_to_set(tiny_encoder, monkeypatch, step):
    """At the start or with the first texts; a gateway's start and `racer train` print it alone."""

    def fails(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 1.50 GiB.")

    options = {"backend": "cpu", "forward": "lean", "recorder": SmallMemory(0)}
    if step == "open":
        monkeypatch.setattr("racer_core.encoder.deberta.LeanDeberta", fails)
    else:
        monkeypatch.setattr("racer_core.encoder.graphs.embedder", lambda *_: fails)
    with pytest.raises(ArtifactError, match=r"--forward transformers.*--backend cpu") as caught:
        HuggingFaceEncoder(str(tiny_encoder), **options).encode(["a"])
    assert "\n" not in str(caught.value)


def test_results_are_the_callers_own():
    """The next batch is computed where these came from."""
    run = graphs.Graphs(
        lambda ids, mask: ids.float(), shapes=[(2, 16)], device="cpu", recorder=ReplayRecorder()
    )
    first = run(*tokens_of((2, 16)))
    run(torch.zeros((2, 16), dtype=torch.int64), torch.ones((2, 16), dtype=torch.int64))
    assert first.tolist() == [[7.0] * 16] * 2
