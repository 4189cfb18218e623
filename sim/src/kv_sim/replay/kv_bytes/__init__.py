"""How many bytes of KV a token of a model takes.

================ =================================
``kv_model``     the sum
``models``       models that are known by name
``model_config`` any other, by its ``config.json``
================ =================================
"""
