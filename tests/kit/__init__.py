"""What several test modules share: gateways, upstreams, rows, clients, databases, waiting."""
