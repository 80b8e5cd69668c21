"""The target `neuron`; importing this package imports no torch and nothing of the vendor's.

Written for Neuron SDK 2.33.1: torch-neuronx 2.13.3 (native, beta) with torch 2.13, NKI 0.7.0.
Nothing of it has run on a device.
"""
