"""Small parts for code that must not block: threads, streams in tasks, budgets of memory."""
