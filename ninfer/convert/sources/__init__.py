"""Checkpoint sources: safetensors files, Hugging Face directories, and codes that are already quantised."""
