"""The testbed's engine against vLLM's schedulers: the same histories, call by call.

============== ========================================================================
``run``        runs the whole comparison
``matrix``     which schedulers and configurations are compared, and which histories are excluded
``recorder``   runs a history in the testbed's engine, and writes its ``trace``
``scheduler``  plays the trace to one of vLLM's schedulers
``bridge``     that scheduler's connector, which gives the trace's answers
``comparison`` finds the first difference
``situations`` counts the situations that occurred
============== ========================================================================
"""
