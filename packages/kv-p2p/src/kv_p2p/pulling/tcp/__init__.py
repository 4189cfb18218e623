"""The wire over TCP: each worker listens at its own port, and the worker that pulls connects to it.

A pull is one connection. Its client names the hold, the digest of what it expects, its layout, and the blocks that
it wants, by their places in the hold. The server answers with frames of blocks, or with one that says why not. The
client says that it has got all, and the hold has ended. ``holds`` decides who may read what; ``server``,
``client`` and ``wire`` have the threads, and a client's are shared out by ``lanes``. ``carried`` is what both say
where something else moves the bytes, through ``slots``.
"""
