"""The promise `same_answer`: rows, calibration and alarms of an application; knows no endpoint."""
