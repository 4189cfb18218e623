"""How long steps, copies and pulls take, in whole nanoseconds.

=========== ==================================================================================
``timing``  how long a step and a copy take
``link``    a link on which copies run one after the other; ``lanes``: the queues of its jobs
``network`` how long pulls between servers take; ``wires``: the wire that kv-p2p uses for them
=========== ==================================================================================
"""
