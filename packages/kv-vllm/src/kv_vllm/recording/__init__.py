"""Writing down what a live engine does: all calls of its connector, or its requests.

============= ==========================================================================
``before``    stands before another connector, and hands each call on
``nothing``   the one behind it, where none is configured
``stats``     hands on what the one behind it counts
**all calls** for the testbed
``connector`` writes each call
``world``     the header of the file: the engine as a world
``schedule``  makes a schedule of such a file
**requests**  for a replay
``trace``     hears of each request; ``traffic``: writes it
``behind``    where the connector behind keeps blocks; ``clock``: when a request arrived
**for both**  kinds of file
``lines``     writes a line
============= ==========================================================================
"""
