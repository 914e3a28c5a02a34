"""Labelling: calls all candidates, grades answers, writes rows; knows no router and no store."""
