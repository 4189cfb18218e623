"""One vLLM without our connector and one with it: ``run`` compares what a ``tiny_model`` says."""
