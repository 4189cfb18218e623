"""The wire over TCP: each worker listens at its own port, and the worker that pulls connects to it.

A pull is one connection. Its client names the hold, the prompt's digest, its layout, and the blocks that it wants,
by their places in the hold. The server answers with frames of blocks, or with one frame that says why it refuses.
The client confirms that it has received all blocks, and the hold ends. ``holds`` decides which holds may be read;
``server``, ``client`` and ``wire`` have the threads, and ``lanes`` shares a client's threads among other workers.
``carried`` is the protocol if a carrier moves the bytes, through ``slots``.

**Locks.** The lock of ``TcpWire`` guards the holds, the client's pulls and the server's connections; its condition
is notified when one of them changes for which a thread of the server may wait. ``Lanes``, ``SlotPool`` and NIXL's
carrier have a lock each. A thread has only one of these at a time, and none while it sends, receives or copies
blocks.
"""
