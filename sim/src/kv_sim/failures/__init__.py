"""What becomes of a failed history: ``shrink`` makes it short, ``schedule_file`` saves it, ``report`` words it.

``telling`` does all three, in an order in which nothing is lost. ``deadline`` limits how long shrinking takes.
``limits`` are the largest numbers that a file may have.
"""
