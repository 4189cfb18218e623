"""The engine of a timed replay: the testbed's, with a clock, for the requests of a trace.

============== ===================================================================================
``drive``      the loop of one engine, over arrivals and steps in the order of time
``together``   several such loops that share one time
``arrivals``   who comes to an engine, and when
``sleepers``   requests that only decode: nothing is decided for them, so their steps are added up
``engine``     the testbed's engine with a clock and the sizes of a server
``scheduler``  its scheduler, which notes what each step costs
``device``     its device: a clock, a link and a disk
``request``    a request of the trace, as the engine has it
``books``      what is counted meanwhile
``seat``       what a server has in common with others: a wire to pull over, or a machine
``neighbours`` the files that servers of one machine share
============== ===================================================================================
"""
