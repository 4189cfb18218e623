"""Where the installed vLLM's classes and ours differ.

``pairs`` lists each class of ours with its counterpart in vLLM, ``compare`` finds the differences, and
``intended`` lists the differences that are intended.
"""
