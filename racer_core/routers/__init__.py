"""Base routers, which estimate each candidate's chance to be right; they know no thresholds."""
