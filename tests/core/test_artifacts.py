"""Artifacts: a saved router loads for the same pool and gives the same scores."""

from dataclasses import replace

import numpy as np
import pytest

from racer_core import artifacts
from racer_core.aggregation.wording import TextRule
from racer_core.artifacts import Artifact, CandidateSpec
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from racer_core.errors import ArtifactError
from racer_core.racer import Racer
from racer_core.records.conversation import fingerprint
from racer_core.routers.base import Batch
from racer_core.routers.knn import KnnRouter
from racer_core.routers.mlp import MlpRouter
from tests.kit.synthetic import POOL, synthetic_rows


def artifact_of(router, **changes):
    """An unsaved artifact on character n-grams."""
    values = {
        "candidates": tuple(CandidateSpec(name=name) for name in POOL),
        "encoder": SPEC,
        "router": router,
        "patterns": PatternModel.of(synthetic_rows(60, seed=3).labels(POOL)),
        "stacked": None,
        "null_threshold": 0.75,
        "salt": "salt",
        "training_fingerprints": frozenset({fingerprint("salt", "seen")}),
    }
    return Artifact(**{**values, **changes})


def fitted(kind):
    """A small router on synthetic rows."""
    rows = synthetic_rows(60, seed=3)
    embeddings = CharNgramEncoder().encode(rows.queries).embeddings
    if kind == "knn":
        return KnnRouter.fit(embeddings, rows.labels(POOL), k=5)
    return MlpRouter.fit(embeddings, rows.labels(POOL), hidden=8, epochs=2)


@pytest.mark.parametrize("kind", ["knn", "mlp"])
def test_saving_and_loading_gives_the_same_artifact(kind, tmp_path):
    """Scores to the last bit, and every field of the manifest, Unicode included."""
    candidates = tuple(
        CandidateSpec(name=name, parameters={"temperature": 0.5, "stop": "ü"}) for name in POOL
    )
    patterns = replace(artifact_of(None).patterns, neighbours=7, prior=0.1 + 0.2, temperature=1.5)
    rule = TextRule(intercept=-0.1, overlap=1.5, conflict=-0.3, shorter=0.2, longer=1e-300)
    fresh = artifact_of(fitted(kind), candidates=candidates, patterns=patterns, text_rule=rule)
    saved = artifacts.save(fresh, tmp_path / "a" / "b")
    loaded = artifacts.load(tmp_path / "a" / "b", POOL)
    assert replace(loaded, router=saved.router, patterns=saved.patterns) == saved
    for name in ("patterns", "frequencies"):
        before, after = (getattr(each.patterns, name) for each in (saved, loaded))
        assert (before.dtype, before.tolist()) == (after.dtype, after.tolist())
    for name in ("neighbours", "prior", "temperature"):
        assert getattr(loaded.patterns, name) == getattr(patterns, name)
    assert loaded.text_rule == rule
    assert len(saved.digest) == 64
    batch = Batch(synthetic_rows(20, seed=4).queries, CharNgramEncoder())
    before, after = saved.router.predict(batch), loaded.router.predict(batch)
    np.testing.assert_array_equal(before.scores, after.scores)
    np.testing.assert_array_equal(before.neighbours, after.neighbours)


@pytest.mark.parametrize(
    ("longest", "query", "found"),
    [
        (4, "seen", True), (4, "seen in training, which cut it", True), (4, "  Seen", True),
        (4, "new", False), (9, "seen in training, which did not cut it", False),
    ],
)  # fmt: skip
def test_a_query_is_found_where_training_cut_it(tmp_path, longest, query, found):
    """It was cut at the longest text of training."""
    artifacts.save(artifact_of(fitted("knn"), longest_text=longest), tmp_path)
    artifact = artifacts.load(tmp_path)
    assert (artifact.overlap_print(query) in artifact.training_fingerprints) == found


def test_folder_holds_two_files_and_no_query(router_folder):
    """Queries are known by keyed hashes alone; weights are safetensors, never pickle."""
    assert sorted(p.name for p in router_folder.iterdir()) == [
        "manifest.json",
        "router.safetensors",
    ]
    content = b"".join(path.read_bytes() for path in router_folder.iterdir())
    assert b"What is" not in content
    artifact = artifacts.load(router_folder)
    assert len(artifact.training_fingerprints) == 300
    assert len(artifact.validation_fingerprints) == 150


def test_artifact_without_training_rows_or_tau_is_saved_too(tmp_path):
    """A router from elsewhere: nothing to compare calibration rows with."""
    bare = artifact_of(fitted("mlp"), training_fingerprints=frozenset(), null_threshold=None)
    artifacts.save(bare, tmp_path)
    assert artifacts.load(tmp_path).training_fingerprints == frozenset()
    assert artifacts.load(tmp_path).null_threshold is None


def test_a_save_that_fails_leaves_the_artifact_before_it(tmp_path, monkeypatch):
    """A full disk, or a process that is killed while it writes, must not stop the next start."""
    before = artifacts.save(artifact_of(fitted("knn")), tmp_path)
    write = artifacts.save_file

    def cut(tensors, path):
        write(tensors, path)
        path.write_bytes(path.read_bytes()[:100])
        assert artifacts.load(tmp_path).digest == before.digest
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifacts, "save_file", cut)
    with pytest.raises(ArtifactError, match="No space left"):
        artifacts.save(artifact_of(fitted("mlp")), tmp_path)
    assert artifacts.load(tmp_path).digest == before.digest
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(artifacts.FILES)
    monkeypatch.undo()
    assert artifacts.save(artifact_of(fitted("mlp")), tmp_path).digest != before.digest
    assert artifacts.load(tmp_path).router.kind == "mlp"


def test_any_change_changes_the_digest(tmp_path):
    """The digest names what a calibration was made for: manifest, weights and patterns."""
    first = artifacts.save(artifact_of(fitted("knn")), tmp_path / "1")
    assert artifacts.load(tmp_path / "1").digest == first.digest
    tau = artifacts.save(artifact_of(fitted("knn"), null_threshold=0.5), tmp_path / "2")
    weights = artifacts.save(
        artifact_of(replace(fitted("knn"), labels=~fitted("knn").labels)), tmp_path / "3"
    )
    fewer = replace(artifact_of(None).patterns, neighbours=7)
    patterns = artifacts.save(artifact_of(fitted("knn"), patterns=fewer), tmp_path / "4")
    assert len({first.digest, tau.digest, weights.digest, patterns.digest}) == 4


def test_fingerprint_looks_through_case_space_and_unicode_form():
    """Near copies of a training query are training queries; the key hides them from guesses."""
    same = ["Ｗhat  is\nit? ", "what is it?", "WHAT IS IT?"]
    assert len({fingerprint("salt", query) for query in same}) == 1
    assert fingerprint("salt", "what is it") not in {
        fingerprint("salt", "what is it?"),
        fingerprint("pepper", "what is it"),
    }
    assert artifacts.new_salt() != artifacts.new_salt()


def test_pool_in_another_order_is_refused_and_both_are_named(router_folder):
    """Columns are positions: another order would give each candidate another one's scores."""
    artifacts.load(router_folder, POOL)
    for pool in (POOL[::-1], POOL[:2], (*POOL, "poet")):
        with pytest.raises(ArtifactError) as caught:
            Racer.load(router_folder, pool)
        assert str(list(POOL)) in str(caught.value)
        assert str(list(pool)) in str(caught.value)
