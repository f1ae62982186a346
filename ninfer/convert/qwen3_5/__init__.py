"""Adapter of the Qwen3.5 family: Hugging Face configs, tensor names, resources and the proposal head."""
