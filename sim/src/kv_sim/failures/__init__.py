"""What becomes of a failure: ``shrink`` makes it short, ``schedule_file`` keeps it, ``report`` says what it is.

``telling`` does all three, in an order in which nothing is lost.
"""
