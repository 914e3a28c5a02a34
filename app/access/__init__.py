"""Who may ask and how much: keys, roles, quotas, allowed hosts and failed logins."""
