"""Arrays in, arrays out: the method for notebooks and scripts; knows no server and no ``app``.

``rows`` makes labelled rows of arrays and data frames and splits them, ``router`` learns from
embeddings, ``calibrate`` and ``evaluate`` take router scores and labels, ``figures`` draws. The
public names of all of them are attributes of :mod:`racer_core`.
"""
