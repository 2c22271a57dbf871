"""Listener, protocol, middleware, admission, drain."""
