"""The page: HTML, CSS and ES modules, and their loader; knows no other module of ``app``."""
