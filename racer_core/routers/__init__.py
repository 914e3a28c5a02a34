"""Routers that estimate each candidate's chance to be right; know no threshold."""
