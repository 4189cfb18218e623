"""The engine of a timed replay: the testbed's engine with a clock, for the requests of a trace.

============== ===================================================================================
``drive``      the loop of one engine, over arrivals and steps in the order of time
``together``   runs several such loops in one common time
``arrivals``   which request comes to an engine next, and when
``sleepers``   requests that only decode: the scheduler decides nothing for them, so their steps are added up
``engine``     the testbed's engine with a clock and the sizes of a server
``scheduler``  its scheduler, which counts the work of each step
``device``     its device: a clock, a link and a disk
``request``    a request of the trace, in the engine's form
``books``      the counts of one replay
``seat``       what a server shares with others: a wire to pull over, or a machine
``neighbours`` the files that servers of one machine share
============== ===================================================================================
"""
