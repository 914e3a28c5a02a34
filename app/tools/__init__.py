"""What commands do without a gateway: labelling, evaluation, tuning, doctor and demo."""
