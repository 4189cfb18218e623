"""Small connectors: three to copy from, which every campaign drives first, and some with other behaviour.

* ``memory``: stores and loads within the step, synchronously.
* ``later``: stores after a request has ended, loads between steps; both asynchronous.
* ``patient``: answers "ask again" before it loads; asynchronous stores behind a barrier.

The others: ``shared`` has one store for several engines, ``layerwise`` works in the hooks of layers, ``flaky``
breaks down, and ``holding`` holds blocks and stores nothing. ``progress`` follows requests from step to step for
connectors that need it, and ``catalogue`` has all subjects that come with the testbed.
"""
