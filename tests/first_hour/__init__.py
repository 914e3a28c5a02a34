"""The first hour of a new user, with models that answer as chat models do."""
