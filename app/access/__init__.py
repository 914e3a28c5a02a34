"""Access rules: API keys, quotas, quota leases, allowed hosts, failed logins."""
