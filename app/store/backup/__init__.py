"""What can be carried from one store to another: calibrations, their alarms, hashes of keys.

``file.py`` is the file, ``calibrations.py`` reads and writes the store, ``keys.py`` the
configuration.
"""
