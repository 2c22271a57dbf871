"""`gateway report`: the command, what a report is made from, and its files."""
