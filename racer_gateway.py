"""Entry point of the ``racer`` command, under the name of the distribution.

The gateway's package is called ``app``, which is a common name: a folder on ``PYTHONPATH`` may be
called so, too, and be found first. This module takes the package that lies beside it.
``python -m racer_gateway`` is the same command.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_INITIAL = Path(__file__).resolve().parent / "app" / "__init__.py"


def main() -> None:
    """Run the ``racer`` command."""
    try:
        use_own_app()
        from app.cli.main import main as run
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] != "app":
            raise
        sys.stderr.write(
            f"racer: the package `app` is not RACER's ({exc}): install racer-gateway into an "
            "environment where no other package is called so\n"
        )
        sys.exit(2)
    run()


def use_own_app() -> None:
    """Have ``import app`` mean RACER's package, also where another one comes first on the path.

    Programs that import modules of ``app`` call it before.

    Raises:
        ImportError: Another ``app`` was imported already, or has overwritten RACER's files.
    """
    if "app" in sys.modules:
        loaded = sys.modules["app"].__file__
        if loaded is None or Path(loaded).resolve() != _INITIAL:
            raise ImportError(f"{loaded} was imported before", name="app")
        return
    spec = spec_from_file_location("app", _INITIAL)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["app"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
