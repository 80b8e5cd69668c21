"""Model architectures, checkpoints and tokenizers."""
