"""Failed histories: ``shrink`` shortens them, ``schedule_file`` saves them, and ``report`` formats them.

``telling`` does all three, and reports the failure first. ``deadline`` limits how long shrinking takes.
``limits`` are the largest numbers that a schedule file may have.
"""
