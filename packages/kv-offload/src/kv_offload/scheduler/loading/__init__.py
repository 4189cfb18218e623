"""From a query to a load.

``matching`` takes both. It asks ``lookup`` (complete chunks) and ``tail_lookup`` (an end within a block) how
far a request can be loaded, and has ``plan`` work out the load that the engine makes of the answer.
"""
