"""The engine: requests, scheduling, model execution and the command line."""
