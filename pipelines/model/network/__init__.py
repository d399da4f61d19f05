"""The GPT-2 network and its loss."""

# On a CPU so many logits are computed at a time, few enough to stay in its caches until they are used again.
LOGITS_AT_ONCE = 1 << 23
