"""Custom routers: found by entry point, rebuilt from an artifact."""

import numpy as np
import pytest

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import ArtifactError
from racer_core.routers import registry
from racer_core.routers.base import Batch
from tests.kit.commands import install

POOL = ("one", "two")
BATCH = Batch(["short", "a longer one"], CharNgramEncoder())
LENGTHS = '''
import numpy as np
from racer_core.routers.base import RouterOutput

class Lengths:
    """The longer the text the better the second candidate."""
    def __init__(self, *, pool, most=20):
        if most <= 0:
            raise ValueError("most must be above 0")
        self.pool, self.most = pool, most
    def predict(self, batch):
        share = np.array([len(text) / self.most for text in batch.texts])
        return RouterOutput(np.column_stack([1 - share, share]))
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package in version 1.0 that offers the router ``lengths``."""
    entry_points = {"lengths": "lengths_router:Lengths"}
    install(tmp_path, monkeypatch, LENGTHS, module="lengths_router", entry_points=entry_points)


def settings_of(router, **changes):
    """As an artifact's manifest keeps them."""
    return {"kind": router.kind, **router.settings(), **changes}


@pytest.mark.usefixtures("installed")
def test_router_of_a_package_is_found_and_scores():
    """With its options and the pool; beside the built-in ones."""
    assert registry.names() == ("knn", "mlp", "routerdc", "lengths")
    router = registry.create("lengths", POOL, {"most": 24})
    np.testing.assert_allclose(router.predict(BATCH).scores, [[19 / 24, 5 / 24], [1 / 2, 1 / 2]])
    assert (router.columns, router.router.pool) == (2, POOL)


@pytest.mark.usefixtures("installed")
def test_router_of_a_package_is_constructed_again_with_its_options():
    """Its settings are all that an artifact keeps of it."""
    router = registry.create("lengths", POOL, {"most": 24})
    assert settings_of(router) == {
        "kind": "custom", "name": "lengths", "options": {"most": 24}, "package": "test-router 1.0"
    }  # fmt: skip
    again = registry.load(router.tensors(), settings_of(router), POOL)
    np.testing.assert_array_equal(again.predict(BATCH).scores, router.predict(BATCH).scores)


@pytest.mark.usefixtures("installed")
def test_another_version_of_the_package_is_refused():
    """Its scores may be others, and then the calibration says nothing about them."""
    router = registry.create("lengths", POOL, {})
    with pytest.raises(ArtifactError, match=r"test-router 0\.9, here it is of test-router 1\.0"):
        registry.load({}, settings_of(router, package="test-router 0.9"), POOL)


def test_router_that_is_not_installed_is_one_sentence():
    """It names what is there and what to install."""
    assert registry.names() == registry.BUILT_IN
    manifest = {"kind": "custom", "name": "lengths", "options": {}, "package": "x 1"}
    for attempt in (
        lambda: registry.create("lengths", POOL, {}),
        lambda: registry.load({}, manifest, POOL),
    ):
        with pytest.raises(ArtifactError, match="no router 'lengths' here, only knn, mlp, routerd"):
            attempt()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("options", "message"),
    [({"most": 0}, "most must be above 0"), ({"least": 3}, "unexpected keyword"),
     ({"most": "x"}, "TypeError")],
)  # fmt: skip
def test_router_that_cannot_be_constructed_is_one_sentence(options, message):
    """Whatever it raises, with the names of its options; their values may be secrets."""
    with pytest.raises(ArtifactError, match=message) as caught:
        registry.create("lengths", POOL, options)
    assert f"(options: {next(iter(options))})" in str(caught.value)


@pytest.mark.parametrize("target", ["lengths_router:Widths", "no_such_module:Lengths"])
def test_entry_point_that_leads_nowhere_is_one_sentence(tmp_path, monkeypatch, target):
    """A typo in a package's pyproject.toml."""
    points = {"lengths": target}
    install(tmp_path, monkeypatch, LENGTHS, module="lengths_router", entry_points=points)
    with pytest.raises(ArtifactError, match="cannot be constructed"):
        registry.create("lengths", POOL, {})


@pytest.mark.usefixtures("installed")
def test_two_packages_with_one_name_are_refused(tmp_path, monkeypatch):
    """The name is ambiguous."""
    points = {"lengths": "other_router:Lengths"}
    folder = tmp_path / "other"
    install(folder, monkeypatch, LENGTHS, module="other_router", entry_points=points, name="other")
    with pytest.raises(ArtifactError, match=r"other 1\.0 and test-router 1\.0 both offer"):
        registry.create("lengths", POOL, {})


def test_package_cannot_take_the_place_of_a_built_in_router(tmp_path, monkeypatch):
    """An artifact of KNN is loaded as KNN beside any installed routers."""
    points = {"knn": "lengths_router:Lengths"}
    install(tmp_path, monkeypatch, LENGTHS, module="lengths_router", entry_points=points)
    assert registry.names() == registry.BUILT_IN
    with pytest.raises(KeyError, match="embeddings"):
        registry.load({}, {"kind": "knn", "k": 1}, POOL)


def answering(tmp_path, monkeypatch, expression):
    """A router whose ``predict`` returns an expression."""
    source = (
        "import numpy as np\nfrom racer_core.routers.base import RouterOutput\nclass Answers:\n"
        "    def __init__(self, *, pool): pass\n"
        f"    def predict(self, batch): return {expression}\n"
    )
    points = {"answers": "answers_router:Answers"}
    install(tmp_path, monkeypatch, source, module="answers_router", entry_points=points)
    return registry.create("answers", POOL, {})


@pytest.mark.parametrize(
    "expression",
    ["RouterOutput(np.zeros((1, 2)))", "RouterOutput(np.zeros((2, 3)))", "RouterOutput([0.5, 0.5])",
     "RouterOutput(np.zeros((2, 2, 1)))", "np.zeros((2, 2))", "None", "RouterOutput([['a', 'b']])",
     "RouterOutput([[0.5], [0.5, 0.5]])"],
)  # fmt: skip
def test_scores_of_another_shape_are_an_error(tmp_path, monkeypatch, expression):
    """For the whole batch: one row short, and a query would get the scores of its neighbour."""
    router = answering(tmp_path, monkeypatch, expression)
    with pytest.raises(ArtifactError, match=r"router 'answers' of test-router 1\.0 failed: "):
        router.predict(BATCH)


def test_an_exception_of_a_router_names_the_router(tmp_path, monkeypatch):
    """Its own exception is the cause."""
    router = answering(tmp_path, monkeypatch, "1 / 0")
    with pytest.raises(ArtifactError, match="failed: ZeroDivisionError: division") as caught:
        router.predict(BATCH)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
