"""Training and measurement of the block classifier of `webtext extract`."""
