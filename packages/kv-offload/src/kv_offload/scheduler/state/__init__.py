"""What the scheduler's side remembers: ``books``, and what is in them.

Of a request: ``request_state``, with its ``progress`` (keys, blocks, how far it has come) and the ``sources``
of its last load. Of the medium: what all ranks have room for (``rooms``). Of jobs: ``jobs``, with those that must
end before a block is written (``watched``) and the blocks that the engine keeps for one (``pins``). Of blocks: who
lost one to somebody else (``block_index``), and who may write one now (``fresh``). Of steps: when a request is
looked at again (``agenda``).
"""
