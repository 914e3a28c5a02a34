"""Conformal risk control over router scores, with numpy; knows no torch, no HTTP and no files.

A query's path: ``augmentation`` (Eq. 2-3) → ``nonconformity`` (App. B) → ``threshold``
(Eq. 6, Alg. 1) → ``prediction_set`` (Eq. 4) → ``metrics``. ``laws`` holds the exact
distributions that realised risk follows; ``calibration`` ties the steps into one object. Drift:
``wager`` → ``martingales``, ``risk_e_process`` → ``monitoring``.
"""
