"""What happens in a world, action by action.

============ ============================================================================================
``draws``    draws the world itself: its sizes, and what the claims of its connector add; ``features``:
             what its sizes decide
``choices``  draws the next action from those that are legal; ``effects``: what an action does
``arrivals`` draws the requests; ``clients``: what their clients send along
``router``   takes tickets from one engine to another
``rest``     brings a world to rest, at the end of each history
``expected`` what a campaign must reach; ``coverage``: what it has reached
============ ============================================================================================
"""
