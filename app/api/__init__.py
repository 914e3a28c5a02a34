"""Parse, call a service, render. No logic."""
