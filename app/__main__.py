"""``python -m app`` is the ``racer`` command."""

from app.cli import main

main()
