"""Measure Noria, other engines and the machine they share."""
