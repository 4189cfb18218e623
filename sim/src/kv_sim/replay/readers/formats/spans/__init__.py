"""Spans of OpenTelemetry, for the format ``otel``.

============= ============================================================================================
``otlp``      finds spans and events in a record
``asked``     the request in them
``services``  translates MLflow's and Langfuse's attributes to OpenTelemetry's names
``logfire``   merges requests that Logfire logs twice
``scattered`` collects messages that are an event each
============= ============================================================================================
"""
