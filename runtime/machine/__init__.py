"""What this machine is, and which backends would run on it; reads only, and imports no torch."""
