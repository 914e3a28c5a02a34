"""HTTP endpoints; they know no middleware and no upstream client.

Each parses a request, calls a service and renders the response. No logic.
"""
