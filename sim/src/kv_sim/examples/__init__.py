"""Three small connectors to copy from, and the first subjects of every campaign.

* ``memory``: stores and loads within the step, synchronously.
* ``later``: stores after a request has ended, loads between steps; both asynchronous.
* ``patient``: answers "ask again" before it loads; asynchronous stores behind a barrier.
"""
