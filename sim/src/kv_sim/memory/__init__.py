"""Real bytes, rights over them, and copies that run when the world says."""
