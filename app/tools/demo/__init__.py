"""The demonstration: real models on the CPU, the gateway before them, a measurement."""
