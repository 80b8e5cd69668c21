"""The target `neuron`; importing this package imports no torch and nothing of the vendor's."""
