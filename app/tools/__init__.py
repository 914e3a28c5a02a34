"""Offline tools behind the commands: labelling, evaluation, tuning, diagnostics, demo."""
