"""Sequential calls under the promise "the same answer"; knows no HTTP, no encoder and no files.

``answer_classes`` holds what every candidate answers, ``reliability`` and ``fit`` make a ``policy``
of it, ``critical`` and ``calibration`` its thresholds, and ``serving`` applies them to a request.
``stacked`` and ``logistic`` are for rows with labels and router scores.
"""
