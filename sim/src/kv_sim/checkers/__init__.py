"""What a history is judged by, beyond what the engine model, its memory and its guard notice themselves.

``violation.Invariant`` names the ten invariants, and ARCHITECTURE.md says which file looks after which.
"""
