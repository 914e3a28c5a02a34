"""The lean forward of DeBERTa-v2 computes what transformers does, on random weights."""

import numpy as np
import pytest

from racer_core.artifacts import open_encoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.errors import ArtifactError
from racer_core.offline.train import EncoderChoice
from tests.core.deberta_models import MOST, deberta, model, texts, torch, transformers


def both(made, ids, mask):
    """Hidden states of all real tokens (N, D): transformers', and the lean forward's."""
    with torch.inference_mode():
        eager = made(input_ids=ids, attention_mask=mask).last_hidden_state
        lean = deberta.LeanDeberta(made, MOST)(ids, mask)
    return eager[mask.bool()].float().numpy(), lean[mask.bool()].float().numpy()


KINDS = {
    "mDeBERTa-v3's": {},
    "positions of their own": {"share_att_key": False},
    "no buckets": {"position_buckets": -1},
    "few distances": {"position_buckets": -1, "max_relative_positions": 6},
    "positions as they are": {"norm_rel_ebd": "none"},
    "absolute positions too": {"position_biased_input": True},
    "narrow words": {"embedding_size": 16},
    "types": {"type_vocab_size": 2},
    "another activation": {"hidden_act": "relu"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(1,), (MOST, 1, 33, 5)], ids=str)
def test_hidden_states_are_those_of_transformers(kind, lengths):
    """To 1e-5 of values around 1, in float32, with padding and without; an order reversed shows."""
    made, (ids, mask) = model(**KINDS[kind]), texts(*lengths)
    eager, lean = both(made, ids, mask)
    assert np.abs(eager).max() > 1.0
    np.testing.assert_allclose(lean, eager, atol=1e-5)
    if lengths == (1,):
        back, _ = both(made, texts(9)[0].flip(1), texts(9)[1])
        assert np.abs(both(made, *texts(9))[0] - back[::-1]).max() > 0.1


@pytest.mark.parametrize(
    "other",
    [
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": ["p2c"]},
        {"relative_attention": False, "position_biased_input": True},
        {"conv_kernel_size": 3},
    ],
    ids=str,
)
def test_unsupported_models_stay_with_transformers(other):
    """Nor does another kind of model fit."""
    assert deberta.fits(model())
    assert not deberta.fits(model(**other))
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    assert not deberta.fits(transformers.BertModel(config))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_encoder_embeds_alike_by_either(tiny_encoder, pooling):
    """And says which one it is: an artifact keeps to the one that it was made with."""
    options = {"backend": "cpu", "dtype": "float32", "pooling": pooling}
    queries = ["a b", "a b c d e f g h", "h", " ".join("abcdefgh" * 20)]
    lean = HuggingFaceEncoder(str(tiny_encoder), **options)
    theirs = HuggingFaceEncoder(str(tiny_encoder), **options, forward="transformers")
    assert (lean.spec.forward, theirs.spec.forward) == ("lean", "transformers")
    found, expected = lean.encode(queries), theirs.encode(queries)
    np.testing.assert_allclose(found.embeddings, expected.embeddings, atol=1e-6)
    assert found.truncated.tolist() == expected.truncated.tolist() == [False, False, False, True]


@pytest.mark.parametrize("forward", ["transformers", "lean"])
def test_an_artifact_is_opened_by_the_forward_that_it_was_made_with(tiny_encoder, forward):
    """Whatever would be taken for a new one."""
    made = HuggingFaceEncoder(str(tiny_encoder), backend="cpu", forward=forward).spec
    assert open_encoder(made).spec == made


def test_the_lean_forward_of_a_model_that_it_does_not_know_is_refused(tiny_encoder, tmp_path):
    """At the start: an artifact says `lean`, and the folder holds another kind of model now."""
    transformers.AutoTokenizer.from_pretrained(str(tiny_encoder)).save_pretrained(tmp_path)
    model(conv_kernel_size=3).save_pretrained(tmp_path)
    assert HuggingFaceEncoder(str(tmp_path), backend="cpu").spec.forward == "transformers"
    with pytest.raises(ArtifactError, match="lean"):
        HuggingFaceEncoder(str(tmp_path), backend="cpu", forward="lean")


@pytest.mark.parametrize("forward", ["transformers", "lean"])
def test_training_opens_the_requested_forward(tiny_encoder, forward):
    """Either forward, regardless of the machine's default."""
    choice = EncoderChoice(name=str(tiny_encoder), backend="cpu", forward=forward)
    assert choice.open().spec.forward == forward
