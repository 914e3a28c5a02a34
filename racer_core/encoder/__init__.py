"""Text encoders: Hugging Face and ONNX models, word vectors, character n-grams; know no router."""
