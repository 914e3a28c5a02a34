"""Text encoders: Hugging Face models, and hashed character n-grams; know no router."""
