"""``kv-sim replay`` without time: which hits each policy has at each capacity.

=========== ===========================================================
``setups``  replays of several setups of caches, on one or more servers
``facts``   what every result says of the trace
``results`` what a replay returns
``stream``  a replay while the trace is still being read
=========== ===========================================================
"""
