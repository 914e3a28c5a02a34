"""Answering: a request is routed, its set called, the answers merged, the decision recorded.

Knows routing, upstream, monitoring and wire formats; knows no web framework and no endpoint.
"""
