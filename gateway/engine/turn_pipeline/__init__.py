"""The agent loop of the library: turn runner, dispatch, proposed calls."""
