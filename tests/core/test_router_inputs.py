"""What decides the scores of a plug-in router: each change has its name, nothing else has one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from racer_core.errors import ArtifactError
from racer_core.routers import inputs
from racer_core.routers.inputs import RouterInputs, code_digest, differing

CODE = "import json\nimport numpy as np\n\ndef load():\n    import yaml\n    from . import other\n"
EDITED = CODE.encode() + b"# another rule"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package, which nothing has imported."""
    folder = tmp_path / "site" / "scoring_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(CODE, encoding="utf-8")
    (folder / "weights.bin").write_bytes(b"1")
    monkeypatch.syspath_prepend(str(folder.parent))
    importlib.invalidate_caches()
    return folder


@pytest.fixture
def router(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RouterInputs:
    """A router with model files, a folder, and options that name nothing; made in their folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"1")
    (tmp_path / "vectors" / "part").mkdir(parents=True)
    (tmp_path / "vectors" / "part" / "0").write_bytes(b"1")
    options = {
        "model": str(tmp_path / "model.bin"),
        "nested": {"parts": [{"folder": str(tmp_path / "vectors")}, str(tmp_path / "later")]},
        "empty": "",
        "here": ".",
        "mode": "vectors",
        "relative": "beside.bin",
        "url": "http://127.0.0.1:9000/scores",
        "text": "x" * 10_000,
        "null": "a\0b",
        "deadline_s": 0.5,
    }
    return RouterInputs.of(options, ("scoring_package.part", "racer_core.routers.knn"))


def replaced(path: str, content: bytes = b"2") -> Callable[[Path], object]:
    """Write another content."""
    return lambda folder: (folder / path).write_bytes(content)


def renamed(path: str, to: str) -> Callable[[Path], object]:
    """The same content under another name."""
    return lambda folder: (folder / path).rename(folder / to)


def compiled(folder: Path) -> None:
    """What Python leaves beside the code."""
    (folder / "site/scoring_package/__pycache__").mkdir()
    (folder / "site/scoring_package/__pycache__/x.pyc").write_bytes(b"2")


def remounted(folder: Path) -> None:
    """What Kubernetes does with a ConfigMap: content in a folder of its own, behind two links."""
    (folder / "vectors/part/..2026_x").mkdir()
    (folder / "vectors/part/0").rename(folder / "vectors/part/..2026_x/0")
    (folder / "vectors/part/..data").symlink_to("..2026_x")
    (folder / "vectors/part/0").symlink_to("..data/0")


def with_tests(folder: Path) -> None:
    """Tests of the package, with a library that scores nothing."""
    (folder / "site/scoring_package/tests").mkdir()
    (folder / "site/scoring_package/tests/test_it.py").write_text("import pytest", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (replaced("model.bin"), ("option.model",)),
        (lambda folder: (folder / "model.bin").unlink(), ("option.model",)),
        (replaced("vectors/part/0"), ("option.nested.parts.0.folder",)),
        (replaced("vectors/part/1"), ("option.nested.parts.0.folder",)),
        (renamed("vectors/part", "vectors/other"), ("option.nested.parts.0.folder",)),
        (replaced("later"), ("option.nested.parts.1",)),
        (replaced("beside.bin"), ("option.relative",)),
        (replaced("site/scoring_package/weights.bin"), ("code.scoring_package",)),
        (replaced("site/scoring_package/__init__.py", EDITED), ("code.scoring_package",)),
        (replaced("model.bin", b"1"), ()),
        (replaced("beside"), ()),
        (compiled, ()),
        (remounted, ()),
        (with_tests, ()),
    ],
)  # fmt: skip
def test_a_change_has_its_name(
    router: RouterInputs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
    names: tuple[str, ...],
) -> None:
    """Contents count, and their names in a folder; times, and what Python compiles, do not.

    Nor does the working directory, once the router is made.
    """
    before = router.digests()
    change(tmp_path)
    monkeypatch.chdir("/")
    assert differing(before, router.digests()) == differing(router.digests(), before) == names


def test_libraries_that_the_code_imports_have_versions(
    router: RouterInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a function imports; the standard library and the package itself have none."""
    before = router.digests()
    assert [each for each in sorted(before) if each.startswith("library.")] == [
        "library.PyYAML",
        "library.numpy",
    ]
    version = inputs.version
    monkeypatch.setattr(inputs, "version", lambda name: "0.1" if name == "numpy" else version(name))
    assert differing(before, router.digests()) == ("library.numpy",)


def test_a_folder_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an option that names a large folder would be read for hours. Links are followed."""
    monkeypatch.setattr(inputs, "MAX_FILES", 3)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "again").symlink_to(tmp_path / "root")
    with pytest.raises(ArtifactError, match="more than 3 files and folders: name"):
        RouterInputs.of({"root": str(tmp_path / "root")}, ()).digests()


def test_a_linked_folder_is_read(tmp_path: Path) -> None:
    """As a router reads it that opens files by their paths."""
    (tmp_path / "root").mkdir()
    (tmp_path / "weights").mkdir()
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "weights")
    router = RouterInputs.of({"root": str(tmp_path / "root")}, ())
    before = router.digests()
    (tmp_path / "weights" / "0").write_bytes(b"1")
    assert differing(before, router.digests()) == ("option.root",)


def test_code_that_is_absent_has_no_digest(package: Path) -> None:
    """Of a package that is installed it needs no import."""
    assert code_digest("no_such_module") == code_digest("sys") == ""
    whole = code_digest("scoring_package")
    assert len(whole) == 64
    assert code_digest("scoring_package.part.checks") == whole, "it may import all of its package"


def test_a_namespace_is_no_package(package: Path) -> None:
    """Those beside it have nothing to do with it: `google` holds dozens."""
    mine, other = (package.parent / "scoring_namespace" / name for name in ("mine", "other"))
    for folder in (mine, other):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("", encoding="utf-8")
    router = RouterInputs.of({}, ("scoring_namespace.mine.part",))
    assert router.code == ("scoring_namespace.mine",)
    before = router.digests()
    (other / "__init__.py").write_text("import json", encoding="utf-8")
    assert differing(before, router.digests()) == ()
    (mine / "__init__.py").write_text("import json", encoding="utf-8")
    assert differing(before, router.digests()) == ("code.scoring_namespace.mine",)
