"""Attention over the block KV cache as NKI kernels, and what runs and checks them on a CPU."""
