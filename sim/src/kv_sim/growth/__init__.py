"""Growth: whether a connector's work in the scheduler, or what it keeps, grows with what it should not depend on.

``situations`` of a ``metered`` world come in several sizes, for requests of several ``models``; its ``meter`` says
how much work the calls in them are. ``kept`` counts what a connector's objects hold when requests have come and
gone. ``command`` compares the sizes, for ``kv-sim growth``.
"""
