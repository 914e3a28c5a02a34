"""`racer bootstrap`: the commands from questions to a calibration; knows their words, not how."""
