"""The engine model: vLLM V1's scheduler and workers, as a connector sees them."""
