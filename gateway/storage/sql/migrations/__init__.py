"""The steps from an empty database to the newest schema, each one a module in `versions`."""
