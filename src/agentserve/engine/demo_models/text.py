"""The words of the demo models: what their tokenizer is trained on and what they can say.

`SENTENCES` is the whole world of both models: an answer is a walk through the word pairs that occur
in it. `MARKER_WORDS` are words that a prompt may contain and no answer does; the hybrid model keeps
them in its recurrent state for long. The remaining text only teaches the tokenizer what prompts of
coding agents look like.
"""

SENTENCES = (
    "The scheduler reads the prompt and looks for a known prefix.",
    "The scheduler fills the next step with the oldest request.",
    "The engine keeps every block of the prompt in the cache.",
    "The engine moves one block to the second card.",
    "The cache keeps the prefix for the next request.",
    "The cache holds the oldest block until the card is full.",
    "A request waits until one block is free.",
    "A request reads the prefix from the cache, so the first token comes soon.",
    "A long prompt is read in chunks, and each chunk fills one step.",
    "A long answer holds its blocks until the last token is sent.",
    "Each worker holds one half of the weights.",
    "Each worker adds its part, and the sum goes to the next layer.",
    "Each step reads the state, writes one token and moves on.",
    "The state is small, but it remembers the whole prompt.",
    "The state of the last block is kept with the prefix.",
    "One layer in four looks at every token of the prompt.",
    "One layer reads the state, and the next layer writes it.",
    "One card is full, so the request waits for a free block.",
    "When the prefix is known, the engine skips the first chunks.",
    "When the cache is full, the oldest block is dropped.",
    "When a request ends, its blocks stay warm for the next prompt.",
    "When one worker stops, the engine stops with it.",
    "If the prompt changes early, every later block is lost.",
    "If the answer is long, the last step is as fast as the first.",
    "If a session comes back, its prefix is still warm.",
    "So the first token comes late, but every later token is fast.",
    "So a small change at the start costs a long prefill.",
    "So the second request is fast and the first is slow.",
    "Then the worker reads its weights and waits for the next step.",
    "Then the scheduler drops a block and adds a new request.",
    "Then the answer ends and the session stays warm.",
)

MARKER_WORDS = (
    "amber",
    "basalt",
    "cobalt",
    "damask",
    "ebony",
    "fennel",
    "garnet",
    "hazel",
    "indigo",
    "jasper",
    "kelp",
    "lilac",
    "maroon",
    "nickel",
    "ochre",
    "pewter",
)

PROMPT_TEXT = '''You are a coding agent. You help the user with one repository, and you answer
in short sentences. Use the tools that you are given; read a file before you change it, and run the
tests after each change. Never guess the content of a file. If a command fails, say what failed.

# Tools
You may call these functions:
<tools>
{"type": "function", "function": {"name": "read_file", "description": "Read a text file and give its
lines", "parameters": {"type": "object", "properties": {"path": {"type": "string", "description":
"Path of the file"}, "start_line": {"type": "integer"}, "end_line": {"type": "integer"}},
"required": ["path"]}}}
</tools>
A call is written as:
{"name": "run_command", "arguments": {"command": "python -m pytest tests/unit -q", "timeout": 60}}
{"name": "edit_file", "arguments": {"path": "src/app/main.py", "old_text": "", "new_text": ""}}

import json
import os
import sys
from pathlib import Path

class Session:
    """A session of one agent, with the requests that it has sent."""

    def __init__(self, name: str, requests: list[str] | None = None) -> None:
        self.name = name
        self.requests = requests if requests is not None else []

    def add(self, request: str) -> int:
        for index, known in enumerate(self.requests):
            if known == request:
                return index
        self.requests.append(request)
        return len(self.requests) - 1

def main(argv: list[str]) -> int:
    try:
        with open(argv[1], encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError) as error:
        print(f"cannot read: {error}", file=sys.stderr)
        return 1
    while data and not data.get("done", False):
        data = data["next"]
    return 0

def test_the_session_knows_its_requests():
    session = Session("first")
    assert session.add("hello") == 0
    assert session.add("world") == 1

Hello, can you explain what this function does? Please fix the bug in the parser and write a test.
What is wrong with the value at line 42? The tests failed: 3 passed, 1 failed, 0 skipped in 1.25 s.
Write a short story about a small engine. Thank you, that works. Now add this option to the server.
'''
