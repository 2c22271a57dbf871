"""The shape of each kind of document, as pydantic models."""
