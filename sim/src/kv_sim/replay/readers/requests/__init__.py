"""From a record to a request of a trace: when it arrives, which blocks its prompt has, and whose it is.

============= ============================================================================================
``times``     when requests arrive
``naming``    from the ids of a file to ids that name a prefix; ``text``: such ids from text alone
``sharing``   assumed shared prefixes where only lengths are known
``sessions``  which requests belong together; ``turns``: what a later request has of earlier ones
``observing`` how much of a prompt the trace's own server had cached
============= ============================================================================================
"""
