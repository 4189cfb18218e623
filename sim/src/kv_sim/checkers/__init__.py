"""The ten checkers, a file each. ``violation.Invariant`` names them."""
