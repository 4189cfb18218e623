"""Where these packages meet vLLM itself. Importing this imports no vLLM; what needs it says so when it is used.

``python -m kv_vllm differential`` compares the testbed's engine model with vLLM's schedulers, call by call;
``python -m kv_vllm drift`` compares the contract with the installed vLLM's classes.
"""
