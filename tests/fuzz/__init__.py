"""Fuzz tests: no input causes an unexpected response. `make fuzz` runs longer."""
