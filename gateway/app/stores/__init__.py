"""The databases and the spool that a project declares."""
