"""Plain torch kernels: the oracle of every other target."""
