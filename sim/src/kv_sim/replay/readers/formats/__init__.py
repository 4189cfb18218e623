"""The known formats of traces: each file not listed here has one, or several, as ``Format`` objects.

===================== =====================================================================================
``lengths``           several formats that have times and lengths, and no ids
``otlp``              for ``otel``: finds spans and events in a record; ``otel_asked``: the request in them;
                      ``services``: translates MLflow's and Langfuse's attributes to OpenTelemetry's names;
                      ``logfire``: merges requests that Logfire logs twice; ``scattered``: collects messages
                      that are an event each
===================== =====================================================================================
"""
