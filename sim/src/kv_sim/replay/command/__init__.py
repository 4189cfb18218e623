"""``kv-sim replay`` and ``kv-sim size``: their options, the files that they write, and what they do in turn."""
