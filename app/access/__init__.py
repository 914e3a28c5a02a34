"""Access: API keys, quotas, leases, hosts, failed logins; knows no endpoint and no candidate."""
