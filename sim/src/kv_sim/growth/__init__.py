"""Growth: whether a connector's work in the scheduler, or what it keeps, grows with what it should not depend on.

``situations`` of a ``server`` come in several sizes, for requests of several ``models``; ``meter`` says how much
work the calls in them are. ``kept`` counts what its objects hold when requests have come and gone. ``command``
compares the sizes, for ``kv-sim growth``.
"""
