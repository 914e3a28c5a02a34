"""Subcommands of ``racer``: each reads arguments, calls a tool and prints; knows no endpoint."""
