"""The decision log: records, their store and writer, feedback."""
