"""Fake upstreams: `scripted` answers as told, `hostile` breaks on purpose."""
