"""Bucket shapes, choice of bucket and padding arithmetic: integers only."""
