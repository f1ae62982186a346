"""Model families. Each owns its mathematics, call order and state transitions."""
