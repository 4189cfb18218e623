"""What the scheduler's side remembers.

================= ==================================================================
``books``         all of the following, and the lock of the medium
``request_state`` one request
``progress``      of a request: its keys, its blocks, and how far it is stored
``sources``       of a load: where its tokens come from
``jobs``          which jobs are under way
``watched``       which blocks they use that somebody else may get
``pins``          blocks that the engine keeps for a store
``evictions``     chunks left on the GPU, until their blocks are given away
``fresh``         blocks that somebody may write from this step on
``block_index``   which block tables list a block
``rooms``         for how many chunks all ranks have room
``agenda``        in which step a request is looked at again
================= ==================================================================
"""
