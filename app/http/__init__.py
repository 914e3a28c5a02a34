"""What stands between a socket and a handler: bytes, hosts, keys, limits, logs."""
