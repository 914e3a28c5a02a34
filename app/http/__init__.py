"""HTTP server protocol and middleware, from the socket to the handler; knows no endpoint."""
