"""Trust envelopes, and texts that imitate their tags."""
