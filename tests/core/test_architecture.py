"""What the packages may import and call."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "aiohttp", "fastapi", "scipy", "safetensors", "matplotlib")


@pytest.mark.parametrize(
    "module",
    [
        "racer_core",
        "racer_core.calibration.calibration",
        "racer_core.aggregation.vote",
        "racer_core.records.reader",
        "racer_core.encoder.char_ngrams",
        "racer_core.routers.knn",
        "racer_core.routers.mlp",
    ],
)
def test_light_modules_import_nothing_heavy(module):
    """The mathematics, the reader and serving beside a numpy encoder start without torch."""
    program = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"}
FORBIDDEN_ARGUMENTS = {"trust_remote_code", "allow_pickle", "shell"}


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
                yield called
            for argument in node.keywords:
                refused = isinstance(argument.value, ast.Constant) and argument.value.value is False
                if argument.arg in FORBIDDEN_ARGUMENTS and not refused:
                    yield f"{argument.arg} in {called}"


@pytest.mark.parametrize("package", ["racer_core", "app"])
def test_nothing_runs_code_that_it_loaded(package):
    """No pickle, no torch.load, no code from a model's folder, no eval."""
    found = [
        f"{path.relative_to(ROOT)}: {each}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for each in violations(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=flag)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_the_search_finds_what_it_looks_for(source):
    """Else the test above could never fail."""
    assert list(violations(ast.parse(source)))
