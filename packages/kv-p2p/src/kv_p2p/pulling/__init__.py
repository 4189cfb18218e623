"""How a request moves: one engine computes the prompt, another one pulls its blocks and goes on.

    producer's scheduler ─── ticket, in kv_transfer_params, through a client or a router ──▶ consumer's scheduler
             │ hold: block ids                                                                  pull │
             ▼                                                                                       ▼
    producer's worker ═════════════════════ blocks, over a wire ═══════════════════════▶ consumer's worker

The producer *holds* the blocks of a prompt when its request ends, and says in the request's output where they
are: a *ticket*. A client or router sends the same prompt to another engine with this ticket. That engine *pulls*
the blocks, each of its workers from the worker of the same rank. A hold ends when its blocks were pulled or
*declined*, or when its time is over. After that no block of it can be read, so a consumer gets the prompt's KV or
nothing.

``ticket`` is what travels through the client, ``groups`` what has to be known of KV cache groups, and ``model``
what of the model. ``scheduler`` and ``worker`` are the two sides of the connector, which decide and neither wait
nor send: bytes move behind a ``wire``. The scheduler's side has two halves, a ``producer`` and a ``consumer``. The
wire over TCP is the folder ``tcp``; it may leave bytes to a ``carrier``, ``mooncake`` or ``nixl``.

What the sides tell each other is ``metadata``, and what is in the caches of a worker ``pages``. ``options`` is
what an operator sets; ``stats`` is what both sides count.
"""
