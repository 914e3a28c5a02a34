"""``racer doctor``: looks at everything that a gateway stands on, and changes nothing.

A check a file: each takes what it looks at, and returns findings. ``examination`` puts them in
order; a check whose premise failed is left out, for its finding would say nothing new.
"""
