"""The wheel: what it holds, what it says of itself, and its `app` beside another package's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from racer_core import __version__

from .dockerfile import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as they lie in an environment."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "racer_gateway.py"):
        shutil.copy(ROOT / name, source / name)
    for name in ("app", "racer_core"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder of a project whose own package is called `app`."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("")
    return tmp_path


def run(other: Path, site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the other project's folder, which comes first on the path."""
    path = os.pathsep.join([str(other), str(site)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=other, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_the_wheel_holds_the_page(site: Path) -> None:
    """Red when a kind of file is left out of the package's data."""
    kinds = (".html", ".css", ".js", ".svg")
    page = {path.name for path in (ROOT / "app" / "ui").iterdir() if path.suffix in kinds}
    assert page <= {path.name for path in (site / "app" / "ui").iterdir()}
    index = Path("app", "ui", "index.html")
    assert (site / index).read_bytes() == (ROOT / index).read_bytes()


def test_the_command_finds_its_own_app(site: Path, other: Path) -> None:
    """Red when a project's package `app`, first on the path, takes the place of RACER's."""
    found = run(other, site, "-c", "import app; print(app.__file__)").stdout
    assert found.startswith(str(other))  # the collision is real
    (entry_points,) = site.glob("*.dist-info/entry_points.txt")
    assert "racer = racer_gateway:main" in entry_points.read_text()
    script = "import sys; from racer_gateway import main; sys.exit(main())"
    for arguments in (("-c", script, "--version"), ("-m", "racer_gateway", "--version")):
        done = run(other, site, *arguments)
        assert (done.returncode, done.stdout) == (0, f"racer, version {__version__}\n"), done.stderr


def test_processes_that_the_command_starts_find_it_too(site: Path, other: Path) -> None:
    """A sandbox names its module by `app`, and takes the package beside itself."""
    script = """
from racer_core.sandbox import SandboxedProcess

with SandboxedProcess("app.judging.math_worker", ["1"], message_bytes=1000) as process:
    print(process.request({"text": "1/2"}))
"""
    done = run(other, site, "-c", script)
    assert "form" in done.stdout, done.stderr


def test_another_app_that_was_imported_before_is_named(site: Path, other: Path) -> None:
    """One sentence with what to do, and the exit code of a configuration that does not fit."""
    done = run(other, site, "-c", "import app, racer_gateway; racer_gateway.main()")
    assert done.returncode == 2
    assert str(other / "app" / "__init__.py") in done.stderr
    assert "install racer-gateway into an environment" in done.stderr
    assert done.stderr.count("\n") == 1


def test_files_that_another_package_has_overwritten_are_named(
    site: Path, other: Path, tmp_path: Path
) -> None:
    """Pip writes two packages `app` into one folder without a word."""
    mixed = tmp_path / "mixed"
    shutil.copytree(site, mixed)
    (mixed / "app" / "errors.py").write_text("")
    done = run(other, mixed, "-m", "racer_gateway", "--version")
    assert done.returncode == 2
    assert "app.errors" in done.stderr
