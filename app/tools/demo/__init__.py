"""Demonstration: real models on the CPU behind a gateway, measured; knows no service inside it."""
