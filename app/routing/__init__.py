"""The decision: which candidates a query is sent to, and the certificate of it."""
