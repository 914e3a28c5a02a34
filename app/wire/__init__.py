"""Wire formats: the OpenAI-compatible APIs, schemas, bodies, server-sent events; knows no routing.

It knows settings; it knows no store and calls no candidate.
"""
