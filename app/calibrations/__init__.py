"""From an upload to an active calibration: spool, rows, scores, evidence, record, and jobs."""
