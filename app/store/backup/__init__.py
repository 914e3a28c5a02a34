"""Backups of a store: calibrations, their alarms and hashes of keys; knows no decisions.

``file.py`` is the file, ``calibrations.py`` reads and writes the store, ``keys.py`` the
configuration.
"""
