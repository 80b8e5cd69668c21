"""The best sets of shapes for a demand: exact where that is possible, with a bound elsewhere."""
