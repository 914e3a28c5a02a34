"""What is remembered of decisions, what people say of them, and what is watched for drift."""
