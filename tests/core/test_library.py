"""`import racer_core`: the public names, and what importing and using them loads."""

import ast
import subprocess
import sys
from pathlib import Path

import racer_core

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "scipy", "sklearn", "pandas", "matplotlib", "pickle")
ARRAYS = """
import sys
import numpy as np
import racer_core as rc
import racer_core.records.reader, racer_core.routers.mlp, racer_core.racer

rng = np.random.default_rng(0)
X, correct = rng.normal(size=(300, 4)), rng.random((300, 3)) < 0.6
queries = [f"What is {i}?" for i in range(300)]
rows = rc.rows_from_arrays(queries, correct, pool=("a", "b", "c"))
for router, X in (
    (rc.EmbeddingRouter(), X),
    (rc.EmbeddingRouter(encoder=rc.CharNgramEncoder()), rows.queries),
):
    output = router.fit(X[:100], correct[:100]).predict(X[100:])
    calibration = rc.calibrate(output[:100], correct[100:200], alpha=0.1)
    assert calibration.predict(output[100:]).shape == (100, 3)
    print(rc.evaluate(calibration, output[100:], correct[200:]))
"""


def loaded(program):
    """The heavy modules that a program has loaded at its end, and what it printed before."""
    check = f"print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\n{check}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1].split()


def test_arrays_are_routed_without_torch():
    """Fit, calibrate, predict and evaluate need numpy; the program runs in its own process."""
    assert "pickle" in loaded("import pickle")
    found = loaded(ARRAYS)
    assert set(found) <= {"pickle"}, "numpy itself imports pickle"
    assert "scipy" not in found


def test_importing_the_package_loads_no_module_of_it_but_itself():
    """Names are looked up when they are first used, so that `app` starts no slower."""
    program = "import racer_core, sys; print(*(m for m in sys.modules if m.startswith('racer_')))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["racer_core"]


def test_every_public_name_exists_and_type_checkers_see_the_same_object():
    """The imports under TYPE_CHECKING are those of the names in ``__all__``, each by its module."""
    tree = ast.parse((ROOT / "racer_core" / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("racer_core.")
        for alias in node.names
    }
    assert sorted(typed) == sorted(racer_core.__all__)
    for name, module in typed.items():
        assert getattr(racer_core, name).__module__ == module, name
    assert set(racer_core.__all__) <= set(dir(racer_core))


def test_an_unknown_name_is_an_attribute_error():
    """As for any module, so that ``hasattr`` and completion work."""
    assert not hasattr(racer_core, "calibrat")
