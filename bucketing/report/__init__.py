"""What there is to see of a plan: one value, and its text, data and page."""
