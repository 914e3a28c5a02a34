"""The promise `same_answer`: rows, calibration and alarms of each application; knows no endpoint."""
