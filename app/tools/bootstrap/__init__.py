"""`racer bootstrap`: the commands from questions to a calibration, run by their words."""
