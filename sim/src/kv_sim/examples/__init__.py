"""Small connectors: three to copy from, which every campaign drives first, and some that do what these don't.

* ``memory``: stores and loads within the step, synchronously.
* ``later``: stores after a request has ended, loads between steps; both asynchronous.
* ``patient``: answers "ask again" before it loads; asynchronous stores behind a barrier.

The others are there for what these don't show: ``shared`` has one store for several engines, ``layerwise`` works
in the hooks of layers, ``flaky`` breaks down, and ``holding`` holds blocks and stores nothing. ``progress`` is
what those that look at each step share, and ``catalogue`` has all subjects that come with the testbed.
"""
