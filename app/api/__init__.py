"""HTTP endpoints: each parses a request, calls a service and renders the response. No logic."""
