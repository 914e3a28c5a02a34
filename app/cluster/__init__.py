"""The gateway on a Ray cluster; the only package that imports ray."""
