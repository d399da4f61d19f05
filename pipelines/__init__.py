"""The stages that rebuild WebText, and what they stand on."""
