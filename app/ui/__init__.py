"""The page: plain HTML, CSS and ES modules, and what serves them as they are."""
