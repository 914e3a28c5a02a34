"""Anthropic's Messages API: a translation to chat and back, which knows no routing and no HTTP.

Tables name every field, block and type of error; the reference prints them.
"""
