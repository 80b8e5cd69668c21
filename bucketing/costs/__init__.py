"""What a step of a graph costs in seconds, and what a graph costs to have."""
