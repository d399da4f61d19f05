"""Train a byte-level BPE tokenizer as GPT-2's: 256 bytes, merges, `<|endoftext|>` (section 2.2)."""
