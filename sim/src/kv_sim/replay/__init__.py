"""Replay of recorded request traces: what a host cache of some size would have been worth."""
