"""The testbed's engine against vLLM's schedulers: the same histories, call by call.

============== ========================================================================
``run``        does all of the following
``matrix``     which schedulers and configurations are compared, and which are left out
``recorder``   runs a history in the testbed's engine, and writes its ``trace``
``scheduler``  takes one of vLLM's schedulers through the trace
``bridge``     its connector, which answers as the trace says
``comparison`` where the two part
``situations`` counts what happened
============== ========================================================================
"""
