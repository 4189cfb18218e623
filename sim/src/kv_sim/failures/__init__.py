"""What becomes of a failure: ``shrink`` makes it short, ``schedule_file`` keeps it, ``report`` says what it is.

``telling`` does all three, in an order in which nothing is lost. ``deadline`` says when shrinking has taken long
enough, or is to be heard of, and ``limits`` which numbers of a file are too large to be replayed.
"""
