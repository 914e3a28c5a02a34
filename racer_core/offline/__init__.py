"""What `racer train` and `racer evaluate` call: slow, synchronous, with progress."""
