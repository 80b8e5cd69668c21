"""Proves of captured graphs, on any machine, what a device's compiler will ask of them."""
