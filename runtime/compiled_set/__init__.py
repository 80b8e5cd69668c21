"""Compiled sets: folders of graphs that are compiled once and loaded anywhere."""
