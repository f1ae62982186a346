"""The Qwen3.5 family: hybrid gated-attention and Gated DeltaNet language models, dense and MoE.

`config` and `inventory` are shared by converter and binder and import no numerical library.
"""
