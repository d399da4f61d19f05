"""Pure functions on strings and arrays: no input, no output, no state."""
