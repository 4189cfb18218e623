"""The engine of a timed replay: the testbed's, with a clock, for the requests of a trace.

``drive`` is the loop over ``arrivals`` and steps, and ``together`` has several of them in one time. A drive leaves
out quiet steps: of one is then left its ``sleepers``.
``engine`` is the testbed's, with a ``scheduler`` that notes what steps cost, a ``device`` that has a clock, and
each ``request`` of the trace. What is counted stands in ``books``. What servers have in common is
a ``seat``'s: wires to pull over, or the files of ``neighbours`` on one machine.
"""
