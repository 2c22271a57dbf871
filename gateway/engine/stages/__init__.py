"""Stages of a pipeline: cache, resilience, views of results, stages of turns."""
