"""The commands of ``racer``: each reads arguments, calls, prints; no logic."""
