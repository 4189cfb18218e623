"""Where the installed vLLM's classes and ours differ: what ``compare`` finds, and what of it is ``intended``.

``pairs`` says what of ours stands for what of vLLM's.
"""
