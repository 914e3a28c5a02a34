"""An OpenAI-compatible upstream that breaks on purpose, in a process of its own."""
