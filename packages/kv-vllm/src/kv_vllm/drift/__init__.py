"""Where the installed vLLM's classes and ours differ.

``pairs`` says which class of ours stands for which of vLLM's, ``compare`` finds the differences, and ``intended``
lists those that are meant.
"""
