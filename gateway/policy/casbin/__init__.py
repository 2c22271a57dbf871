"""The Casbin adapter: policy files, matcher, enforcer, lint."""
