"""Grants: roles that callers hold for a short time, on request, after an approval."""
