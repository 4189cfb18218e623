"""Looking at a history: ``watch`` tells what an action changed; ``log`` and ``perfetto`` write it."""
