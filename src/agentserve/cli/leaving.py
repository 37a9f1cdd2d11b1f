"""How this process ends once an engine was in it."""

from __future__ import annotations

import os
import sys


def leave(status: int) -> None:
    """End this process now if vLLM was loaded into it.

    vLLM's executor threads are no daemons and can outlive their engine; a normal exit would wait
    for them. Everything that must be put back has been put back before.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if "vllm" in sys.modules:
        os._exit(status)
