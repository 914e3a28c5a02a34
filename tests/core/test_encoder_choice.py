"""Choice of the encoder: its false-choice rate, its power, and whole trainings beside it."""

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest

from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from racer_core.encoder.huggingface import DEFAULT_ENCODER
from racer_core.encoder.word_vectors import WORDLLAMA
from racer_core.errors import InputError, RowsError
from racer_core.offline import encoder_choice
from racer_core.offline.encoder_choice import (
    AUTO,
    ERROR_RATE,
    MeasuredEncoder,
    choose_encoder,
    compare,
    default_encoder,
    offered,
)
from racer_core.offline.fit import RouterChoice
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import synthetic_rows

stats, torch = LazyModule("scipy.stats"), LazyModule("torch")

DRAWS = 200
ROWS = 60


def measured(sizes):
    """Encoders that get dearer, with these set sizes (n, m)."""
    return [
        MeasuredEncoder(name=str(i), ms=1.0 + i, sizes=column) for i, column in enumerate(sizes.T)
    ]


def chosen(sizes, units=None):
    """The number of the encoder that is chosen, in the order of cost."""
    found = compare(measured(sizes), np.arange(len(sizes)) if units is None else units)
    return next(i for i, each in enumerate(found) if each.chosen)


def noise(rng, count, encoders, shared=0.7):
    """Symmetric deviations of sizes; encoders agree on most of a row."""
    own = rng.normal(size=(count, encoders))
    return 2.5 + shared * rng.normal(size=(count, 1)) + (1.0 - shared) * own


def test_of_equally_good_encoders_the_cheapest_is_chosen():
    """Another one in at most 5 % of draws, whichever of four has the smallest mean.

    The bound on the count is passed by a rate of 5 % with a chance of 1e-6.
    """
    rng = np.random.default_rng(1)
    dearer = sum(chosen(noise(rng, ROWS, 4)) != 0 for _ in range(DRAWS))
    assert dearer <= stats.binom.isf(1e-6, DRAWS, ERROR_RATE)


def test_rows_of_a_unit_count_as_one():
    """Ten copies of a row are no evidence; taken for rows of their own they would be."""
    rng = np.random.default_rng(2)
    units = np.repeat(np.arange(20), 10)
    draws = [np.repeat(noise(rng, 20, 2), 10, axis=0) for _ in range(DRAWS)]
    limit = stats.binom.isf(1e-6, len(draws), ERROR_RATE)
    assert sum(chosen(sizes, units) != 0 for sizes in draws) <= limit
    assert sum(chosen(sizes) != 0 for sizes in draws) > 2 * limit


def test_a_dearer_encoder_with_smaller_sets_is_chosen():
    """The cheapest of those that are as good: neither the cheapest of all nor the smallest."""
    sizes = noise(np.random.default_rng(3), 500, 4) + np.array([0.5, 0.0, 0.3, 0.0])
    found = compare(measured(sizes), np.arange(500))
    assert [each.chosen for each in found] == [False, True, False, False]
    assert [each.larger for each in found][:2] == [True, False]
    first = found[0]
    assert first.difference == pytest.approx(sizes[:, 0].mean() - sizes.mean(axis=0).min())
    best = sizes[:, int(sizes.mean(axis=0).argmin())]
    expected = 1.96 * stats.sem(sizes[:, 0] - best, ddof=0)
    assert first.half_width == pytest.approx(expected)
    assert first.size - first.difference == pytest.approx(best.mean())


@dataclass(frozen=True)
class Topics:
    """An encoder that sees the topic of a synthetic query, or nothing at all."""

    informed: bool
    seconds: float = 0.0
    spec = replace(SPEC, name="topics")

    def encode(self, texts):
        """N-grams of the first two words, or of nothing."""
        time.sleep(self.seconds)
        read = [" ".join(text.split()[:2]) if self.informed else "same" for text in texts]
        return CharNgramEncoder().encode(read)


def test_the_sets_of_validation_rows_decide():
    """A blind encoder is passed over for a dearer one that sees the topic, and not otherwise."""
    rows, validation = synthetic_rows(300, seed=1), synthetic_rows(300, seed=2)
    knn = RouterChoice(kind="knn")
    slow = 0.004
    encoders = {"blind": Topics(False), "sees": Topics(True, slow), "slow": Topics(True, 2 * slow)}
    name, compared = choose_encoder(encoders, rows, validation, choice=knn)
    assert [each.name for each in compared] == ["blind", "sees", "slow"]
    assert (name, compared[0].larger) == ("sees", True)
    assert compared[1].size == compared[2].size < compared[0].size
    assert slow * 1e3 < compared[1].ms < compared[2].ms
    equal = {"dear": Topics(True, slow), "cheap": Topics(True)}
    assert choose_encoder(equal, rows, validation, choice=knn)[0] == "cheap"
    with pytest.raises(InputError, match="give routerdc one --encoder"):
        choose_encoder(equal, rows, validation, choice=RouterChoice(kind="routerdc"))
    with pytest.raises(RowsError, match="label more, or name one --encoder"):
        choose_encoder(equal, rows, validation[:49], choice=knn)


def test_one_encoder_and_one_on_a_gpu_are_taken_as_they_are():
    """Nothing is embedded; rows that are too few do not matter."""
    rows = synthetic_rows(3, seed=1)
    knn = RouterChoice(kind="knn")
    on_gpu = Topics(True)
    object.__setattr__(on_gpu, "spec", replace(SPEC, backend="cuda"))
    assert choose_encoder({"a": Topics(True)}, rows, rows, choice=knn) == ("a", ())
    both = {"a": Topics(True), "b": on_gpu}
    assert choose_encoder(both, rows, rows, choice=knn) == ("b", ())


@pytest.mark.parametrize(
    ("router", "backend", "has_gpu", "default"),
    [
        ("knn", None, False, WORDLLAMA),
        ("knn", None, True, DEFAULT_ENCODER),
        ("knn", "cpu", True, WORDLLAMA),
        ("mlp", "cuda", False, DEFAULT_ENCODER),
        ("routerdc", "cpu", False, DEFAULT_ENCODER),
    ],
)
def test_without_a_name_a_cpu_has_word_vectors_and_a_gpu_mdeberta(
    monkeypatch, router, backend, has_gpu, default
):
    """RouterDC fine-tunes a transformer, so it has mDeBERTa everywhere."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert default_encoder(router, backend) == default


def test_auto_stands_for_what_needs_no_download(monkeypatch):
    """N-grams, and the usual transformers in the hub's cache; names that were given come first."""
    assert offered(()) == ()
    assert offered(("a", "b", "a")) == ("a", "b")
    monkeypatch.setattr(encoder_choice, "is_cached", lambda name: name == DEFAULT_ENCODER)
    assert offered((AUTO, "words")) == ("words", "char-ngrams", WORDLLAMA, DEFAULT_ENCODER)
    monkeypatch.undo()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not encoder_choice.is_cached("nothing/of-this-name")
