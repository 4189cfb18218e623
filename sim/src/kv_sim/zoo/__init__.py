"""The zoo: bugs that KV connectors really had, planted in ours on purpose, to see that the testbed finds them.

``registry`` lists them (``PLANTED``), each a ``planted.Planted``: with the public thread that tells of it and the
checker that must catch it. ``hunt`` measures how soon that happens, ``command`` prints it for ``kv-sim zoo``.

The bugs live in files by theme, as connector classes that a subject names like any other. Mostly one part of a
right connector is wrong: a class above the connector, which says in whose place it stands (``with_parts``).

============================ ==============================================================================
in the examples              ``contract``, ``endings``, ``failures``, ``hits``, ``late``, ``loads``, and, between
                             workers, ``ranks`` and ``transfers``; where the engine sleeps, ``sleeps``;
                             where engines share a store, ``shared``
in kv-offload's connector    ``offload``, ``offload_books``, ``offload_lives``, ``offload_states``,
                             ``offload_waits``
in media below it            ``media`` (their manager), ``files`` (their copies)
in kv-p2p's connector        ``pulls``, ``pulls_of_groups``, ``holds``
in both, of what clients say ``clients``
in both, of sizes of blocks  ``unequal``
in kv-multi's                ``several``
============================ ==============================================================================
"""
