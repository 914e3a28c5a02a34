"""Text to embeddings: any Hugging Face encoder, or hashed character n-grams without weights."""
