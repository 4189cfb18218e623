"""Slot numbers of host memory, and what is kept by them. Nothing here knows what a chunk is.

=========== ========================================
``columns`` a value for each slot
``pick``    reads many items in one call
``free``    the slots that hold nothing
``pins``    how many jobs use each slot
=========== ========================================
"""
