"""The worker's side.

============ =====================================================
``side``     takes the engine's calls
``register`` finds the bytes of each group in the engine's tensors
``running``  the jobs under way, and what is reported of them
============ =====================================================
"""
