"""What a live engine asks its connector: ``connector`` writes it down, and ``schedule`` makes a schedule of it."""
