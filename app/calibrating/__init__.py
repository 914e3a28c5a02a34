"""Modules that are still to be folded into others."""
