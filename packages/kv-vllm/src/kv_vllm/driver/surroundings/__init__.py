"""What vLLM's connectors find in a server: each part is the testbed's, or a stand-in.

=========== ===================================
``tensors`` the testbed's memory as tensors
``device``  a device whose steps run at once
``streams`` streams and events
``ranks``   groups of ranks
``layers``  attention layers
``ports``   ports to listen on
=========== ===================================
"""
