"""Demonstration: real models on the CPU, a gateway in front of them, and a measurement."""
