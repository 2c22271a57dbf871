"""A project as one signed file: manifest, archive and signature."""
