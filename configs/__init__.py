"""Ready-made engine configurations (data only)."""
