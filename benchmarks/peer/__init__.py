"""Comparison of ninfer with llama.cpp on one machine: the parts of `cpu_vs_llamacpp.py`."""
