"""Makes a demo model in a process of its own.

`python -m agentserve.engine.demo_models NAME CACHE_DIR` prints the path of the model folder. The
app uses this form, as numpy and the tokenizer library would stay in its memory, and as a
process can be ended when the start is given up. Exits 2 with its reason on stderr when the model
cannot be made.
"""

import sys
from pathlib import Path

from agentserve.domain.errors import AgentServeError
from agentserve.engine.demo_models import ensure_demo_model


def main(arguments: list[str]) -> int:
    """Make the model and print its path.

    Args:
        arguments: Name of the model and cache folder.

    Returns:
        The process exit status.
    """
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m agentserve.engine.demo_models NAME CACHE_DIR\n")
        return 2
    name, cache_dir = arguments
    try:
        folder = ensure_demo_model(name, Path(cache_dir))
    except AgentServeError as error:
        sys.stderr.write(f"{error.message} {error.hint}\n")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
