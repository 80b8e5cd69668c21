"""From traffic, limits and a budget to a plan, and what can be asked of a plan afterwards."""
