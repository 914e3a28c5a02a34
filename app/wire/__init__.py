"""Wire formats: the OpenAI-compatible APIs, request schemas, bodies, server-sent events.

Knows settings; knows no routing, no candidate and no store.
"""
