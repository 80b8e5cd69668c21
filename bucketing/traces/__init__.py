"""Traffic: what requests a service had, read from text or drawn from a family."""
