"""What happens in a world, action by action.

``draws`` draws the world itself. ``choices`` draws the next action of those that are legal, and ``arrivals`` who
comes; ``clients`` are what some of them send along; ``router`` gives them the ticket of another one, where engines
serve each other; ``effects`` are what actions do. ``legal`` lists what a campaign must reach, and
``coverage`` counts what it did.
"""
