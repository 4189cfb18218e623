"""Requests to models, and chats, as programs and gateways write them: where in a record they are, and their text.

============ =============================================================================================
**requests** to an API, in any log
``asked``    the request, wherever a log keeps it; ``answered``: its answer as text
``usual``    requests of Gemini's API and of Text Generation Inference in the form of OpenAI's API
``counts``   how many tokens it counts; ``cached``: how many of a prompt the API had cached
**prompts**  as text in pieces
``chat``     the prompt of a chat, and of each answer of a conversation; ``parts``: of the parts of a message
``chains``   the earlier messages of requests that only have the new ones
``messages`` chats that programs save, in which an answer stands below its question
============ =============================================================================================
"""
