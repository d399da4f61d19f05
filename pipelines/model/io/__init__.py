"""Reading and writing models: import, export, safetensors."""
