"""Whatever comes in, nothing unexpected comes out. `make fuzz` looks longer and elsewhere."""
