"""Adapters shared by the gateways: JSON in the OpenAI forms → owning prompt values."""
