"""What happens in a world, action by action.

``choices`` draws the next of those that are legal, and ``arrivals`` who comes; ``effects`` are what actions do.
``legal`` lists what a campaign must reach, and ``coverage`` counts what it did.
"""
