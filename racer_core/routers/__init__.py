"""Base routers: embeddings to the chance that each candidate is right."""
