"""YAML with positions: folders, files, documents, trees."""
