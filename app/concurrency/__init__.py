"""Parts for code that must not block the event loop; knows nothing of the rest of `app`."""
