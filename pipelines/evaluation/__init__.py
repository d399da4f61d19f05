"""Zero-shot and few-shot evaluation of language models from local files."""
