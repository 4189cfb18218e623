"""Compares a vLLM without our connector and one with it: ``run`` compares the outputs of a ``tiny_model``."""
