"""Text encoders: Hugging Face models, and hashed character n-grams; they know no routers."""
