"""Labels rows: candidates are asked, and their answers graded."""
