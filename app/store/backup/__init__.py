"""Backups of a store: calibrations, their alarms and hashes of keys; knows no decisions.

``file.py`` is the file format; ``calibrations.py`` reads and writes the store.
"""
