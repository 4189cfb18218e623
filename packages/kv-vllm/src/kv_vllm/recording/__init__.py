"""Records a live engine: all calls of its connector, or its requests.

============= ==========================================================================
``before``    wraps another connector, and passes each call on
``nothing``   the wrapped connector if none is configured
``stats``     passes on the wrapped connector's stats
**all calls** for the testbed
``connector`` writes each call
``world``     the header of the file: the engine as a world
``schedule``  makes a schedule of such a file
**requests**  for a replay
``trace``     the connector that notices requests; ``traffic``: writes them
``behind``    where the wrapped connector keeps blocks; ``clock``: when a request arrived
**for both**  kinds of file
``lines``     writes a line
============= ==========================================================================
"""
