"""Architecture rules: permitted imports and calls of the packages."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import COLLECTED

ROOT = Path(__file__).parents[2]


def test_a_row_reader_process_starts_without_the_settings():
    """Every large upload starts one; pydantic alone would double the time of a start."""
    program = "import app.calibrations.row_reader_process, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    unneeded = {"pydantic", "yaml", "safetensors", "sqlalchemy", "app.settings"}
    assert not unneeded & set(done.stdout.split())


@cache
def parsed(path):
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"}
FORBIDDEN_ARGUMENTS = {"trust_remote_code", "allow_pickle", "shell"}
# Reads torch's old format, in a process of its own, which is limited.
UNPICKLER = "racer_core/encoder/pickled_weights_process.py"


def violations(tree):
    """Everything in a module that could run code from a file or from the network."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        else:
            names = set()
        yield from sorted(names & FORBIDDEN_MODULES)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_NAMES | FORBIDDEN_CALLS:
                restricted = any(ast.unparse(each) == "weights_only=True" for each in node.keywords)
                yield f"{called} of weights only" if restricted else called
            for argument in node.keywords:
                refused = isinstance(argument.value, ast.Constant) and argument.value.value is False
                if argument.arg in FORBIDDEN_ARGUMENTS and not refused:
                    yield f"{argument.arg} in {called}"


@pytest.mark.parametrize("package", ["racer_core", "app"])
def test_nothing_runs_code_that_it_loaded(package):
    """No pickle, no torch.load but of weights in one module, no code of a model's, no eval."""
    found = [
        f"{path.relative_to(ROOT)}: {each}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for each in violations(parsed(path))
    ]
    allowed = f"{UNPICKLER}: torch.load of weights only"
    assert found == ([allowed] if package == "racer_core" else [])


def test_weights_are_unpickled_in_a_sandbox_alone():
    """The module limits itself before it reads, and is started as a process, never imported."""
    main = next(node for node in parsed(ROOT / UNPICKLER).body if isinstance(node, ast.FunctionDef))
    calls = [each for each in ast.walk(main) if isinstance(each, ast.Call)]
    lines = {ast.unparse(each.func): each.lineno for each in calls}
    assert lines["enter_sandbox"] < lines["torch.load"]
    name = Path(UNPICKLER).stem
    importing = [
        path
        for package in ("racer_core", "app")
        for path in (ROOT / package).rglob("*.py")
        if re.search(rf"import.*\b{name}\b|from \S*\b{name} import", path.read_text())
    ]
    assert importing == []


PRIVATE = re.compile(r"(?<!\w)_[a-zA-Z]\w*")


def defined(tree):
    """The names of functions, classes, variables and attributes that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def touched(text, private):
    """The private names that a test imports, reads of another object or replaces."""
    if private.isdisjoint(PRIVATE.findall(text)):
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(names=names):
                found = [alias.name for alias in names]
            case ast.Attribute(value=ast.Name(id="self" | "cls" | "os")):
                found = []
            case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
                found = [name]
            case ast.Call(func=func, args=arguments) if ast.unparse(func).endswith("attr"):
                texts = [each.value for each in arguments[:2] if isinstance(each, ast.Constant)]
                found = [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
            case _:
                found = []
        yield from private.intersection(found)


def test_collecting_the_tests_imports_nothing_heavy(request):
    """Each worker collects all tests: import such a module by `tests.kit.lazy`."""
    assert request.config.stash[COLLECTED] == set()


def test_no_test_touches_a_private_name():
    """A test of a private name breaks when the code moves and the behaviour stays."""
    private = {
        name
        for package in ("racer_core", "app")
        for path in (ROOT / package).rglob("*.py")
        for name in defined(parsed(path))
        if PRIVATE.fullmatch(name)
    }
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in touched(path.read_text(encoding="utf-8"), private)
    ]
    assert found == []


def imported_test_modules(path, modules):
    """The test modules that a file imports, whole or names of them."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        else:
            continue
        yield from modules.intersection(name.rpartition(".")[2] for name in names)


def test_no_module_imports_a_test_module():
    """What two test modules need stands in the kit, or in a module of their folder."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    modules = {path.stem for path in paths if path.stem.startswith("test_")}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name in imported_test_modules(path, modules)
    ]
    assert found == []
