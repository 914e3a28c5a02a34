"""The promise that the answer is the one that the reference would have given."""
