"""Decision log: records, their store and writer, feedback; knows no HTTP."""
