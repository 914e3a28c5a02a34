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
def router(package: Path, tmp_path: Path) -> RouterInputs:
    """A router with a model file, a folder, and options that name nothing."""
    (tmp_path / "model.bin").write_bytes(b"1")
    (tmp_path / "vectors" / "part").mkdir(parents=True)
    (tmp_path / "vectors" / "part" / "0").write_bytes(b"1")
    options = {
        "model": str(tmp_path / "model.bin"),
        "nested": {"parts": [{"folder": str(tmp_path / "vectors")}, str(tmp_path / "later")]},
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


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (replaced("model.bin"), ("option.model",)),
        (lambda folder: (folder / "model.bin").unlink(), ("option.model",)),
        (replaced("vectors/part/0"), ("option.nested.parts.0.folder",)),
        (replaced("vectors/part/1"), ("option.nested.parts.0.folder",)),
        (renamed("vectors/part", "vectors/other"), ("option.nested.parts.0.folder",)),
        (replaced("later"), ("option.nested.parts.1",)),
        (replaced("site/scoring_package/weights.bin"), ("code.scoring_package",)),
        (replaced("site/scoring_package/__init__.py", EDITED), ("code.scoring_package",)),
        (replaced("model.bin", b"1"), ()),
        (replaced("beside"), ()),
        (compiled, ()),
    ],
)  # fmt: skip
def test_a_change_has_its_name(
    router: RouterInputs, tmp_path: Path, change: Callable[[Path], object], names: tuple[str, ...]
) -> None:
    """Contents count, and their names in a folder; times, and what Python compiles, do not."""
    before = router.digests()
    change(tmp_path)
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


def test_an_options_folder_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an option that happens to name a large folder would be read for hours."""
    monkeypatch.setattr(inputs, "MAX_FILES", 3)
    for name in "abcd":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ArtifactError, match="more than 3 files: let the options"):
        RouterInputs.of({"root": str(tmp_path)}, ()).digests()


def test_code_that_is_absent_has_no_digest(package: Path) -> None:
    """Of a package that is installed it needs no import."""
    assert code_digest("no_such_module") == code_digest("sys") == ""
    whole = code_digest("scoring_package")
    assert len(whole) == 64
    (package / "part").mkdir()
    (package / "part" / "checks.py").write_text("", encoding="utf-8")
    within = code_digest("scoring_package.part.checks")
    assert len({whole, within, code_digest("scoring_package")}) == 3
    (package / "weights.bin").write_bytes(b"2")
    assert code_digest("scoring_package.part.checks") == within, "of its own package alone"
