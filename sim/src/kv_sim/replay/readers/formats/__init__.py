"""The formats of traces that are known: each file that isn't named here is one, with its ``Format``.

===================== =====================================================================================
``lengths``           several formats that have times and lengths, and no ids
``otlp``              of ``otel``: where spans and events lie; ``otel_asked``: what they say was asked;
                      ``services``: what MLflow's and Langfuse's say, in OpenTelemetry's words;
                      ``logfire``: what Logfire's say twice; ``scattered``: messages that are an event each
===================== =====================================================================================
"""
