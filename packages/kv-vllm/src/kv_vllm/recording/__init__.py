"""What a live engine does, written down: all that its connector is asked, or what its requests were.

``before`` stands before another connector, whose ``stats`` it hands on with that one's name; ``connector`` writes
down each call, under a header that has the engine as a ``world``, and ``schedule`` makes a schedule of them;
``trace`` notes each request, which ``traffic`` writes, with ``nothing`` behind it if no connector is; ``behind``
is what that keeps. ``clock`` says when it arrived. ``lines`` writes each line of both.
"""
