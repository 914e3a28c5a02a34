"""HTTP server protocol and middleware, from the socket to the handler. Knows no endpoint."""
