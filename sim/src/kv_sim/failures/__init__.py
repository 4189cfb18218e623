"""What becomes of a failure: ``shrink`` makes it short, ``schedule_file`` keeps it, ``report`` says what it is."""
