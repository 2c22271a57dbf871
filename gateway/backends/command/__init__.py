"""A program as a tool: argument template, confinement, child process."""
