"""Diagnostics as text, JSON, SARIF, JUnit and GitHub annotations."""
