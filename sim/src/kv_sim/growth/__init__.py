"""Growth, for ``kv-sim growth``: does a connector's work, or what it keeps, grow with what it shouldn't depend on?

============== ========================================================================================
``models``     the models whose requests are tried
``situations`` what is tried, each in several sizes
``metered``    a world that counts the work in the calls of a connector; ``meter``: how that is counted
``kept``       counts what the objects of a connector hold after requests have come and gone
``command``    compares the sizes, and prints
============== ========================================================================================
"""
