"""Statistics that notice that traffic or risk has changed."""
