"""The guard of every handler: policy, stop list, gate rules, limits, holds."""
