"""Comparisons that find weaker controls between two versions of a project."""
