"""Tokens and batches are those of transformers' own tokenizer, made without it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from racer_core.encoder.tokens import TextTokenizer, TokenizedText, limited, padded
from racer_core.errors import ArtifactError
from tests.kit.lazy import LazyModule

transformers = LazyModule("transformers")

LIMIT = 7
TEXTS = st.lists(st.text(st.sampled_from("abcdefgh é\n")) | st.text(), min_size=1, max_size=6)


def theirs(folder):
    """A fresh one: ours changes the tokenizer that it is given."""
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module", params=["right", "left"])
def both(request, tiny_encoder):
    """Transformers' tokenizer and ours; texts are cut at either end.

    Ours has a limit and padding of its own, as some tokenizer.json files do.
    """
    reference, own = theirs(tiny_encoder), theirs(tiny_encoder)
    reference.truncation_side = own.truncation_side = request.param
    own.backend_tokenizer.enable_truncation(4, stride=1)
    own.backend_tokenizer.enable_padding(length=20)
    return reference, TextTokenizer(limited(own, LIMIT), "tiny")


@given(texts=TEXTS)
def test_tokens_and_batches_are_those_of_transformers(both, texts):
    """Special tokens, the cut and padding included; texts come back as they were."""
    reference, tokenizer = both
    made = tokenizer(texts)
    assert made == texts
    expected = reference(texts, truncation=True, max_length=LIMIT, padding=True)
    ids, mask = padded(made, reference.pad_token_id)
    assert ids.tolist() == expected["input_ids"]
    assert mask.tolist() == expected["attention_mask"]
    lengths = [len(row) for row in reference(texts)["input_ids"]]
    assert [text.truncated for text in made] == [length > LIMIT for length in lengths]


def test_texts_that_have_tokens_stay_the_same_objects(both):
    """Also beside others, and on several threads at once."""
    _, tokenizer = both
    texts = ["a b", "c", "", "d e f g h a b c d"]
    first, *others = tokenizer(texts)
    again = tokenizer([texts[1], first, *texts[2:]])
    assert again[1] is first
    assert isinstance(again[0], TokenizedText)
    with ThreadPoolExecutor(4) as threads:
        for made in threads.map(tokenizer, [texts] * 20):
            for one, other in zip(made, [first, *others], strict=True):
                assert np.array_equal(one.ids, other.ids)


def test_padding_is_at_the_end_and_of_any_id(tiny_encoder):
    """Also where transformers would pad in front, which would move the first token."""
    tokenizer = theirs(tiny_encoder)
    tokenizer.padding_side = "left"
    short, long = TextTokenizer(limited(tokenizer, LIMIT), "tiny")(["a", "a b c"])
    ids, mask = padded([short, long], 9)
    assert ids.tolist() == [[*short.ids, 9, 9], list(long.ids)]
    assert mask.tolist() == [[1, 1, 1, 0, 0], [1] * 5]


def test_a_text_without_tokens_gets_one(tiny_encoder):
    """A tokenizer without special tokens gives an empty text none, and no model takes none."""
    tokenizer = theirs(tiny_encoder)
    tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
    made = TextTokenizer(limited(tokenizer, LIMIT), "tiny")(["", "a b"])
    assert [len(each.ids) for each in made] == [0, 2]
    for batch, shape in ((made, (2, 2)), (made[:1], (1, 1))):
        ids, mask = padded(batch, 0)
        assert ids.shape == mask.shape == shape
        assert (ids[0] == 0).all()
        assert mask[0].sum() == 1


def test_types_of_tokens_are_refused(tiny_encoder):
    """As XLNet's tokenizer marks its special tokens: no forward here would be told."""
    tokenizer = theirs(tiny_encoder)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [CLS]:2", special_tokens=[("[CLS]", 2)]
    )
    with pytest.raises(ArtifactError, match=r"'tiny'.*train with another encoder"):
        TextTokenizer(limited(tokenizer, LIMIT), "tiny")
