"""The tools of a small company: what the example configuration publishes, runnable without a network."""
