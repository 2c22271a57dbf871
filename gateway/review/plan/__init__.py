"""What a change means: documents, policy rows, access, risk."""
