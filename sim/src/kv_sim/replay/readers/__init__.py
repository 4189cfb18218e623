"""Readers of request traces: a format a file; ``opening`` makes a trace of a file whatever its format."""
