"""The GPT-2 network and its loss."""
