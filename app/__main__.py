"""``python -m app`` is the ``racer`` command."""

from app.cli.main import main

main()
