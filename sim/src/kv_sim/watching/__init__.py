"""Looking at a history: ``watch`` tells what an action changed; ``log`` and ``perfetto`` write it.

``brief`` has the words for any value, which are the same in every run.
"""
