"""A process that has imported all a shelf at an address needs and forks one for every order: a real server, at once.

It reads one order a line from standard input, a folder and a port, and answers each with the number of its process.
"""

import ctypes
import json
import os
import runpy
import signal
import sys
from importlib import import_module
from pathlib import Path

PREPARED = ("mcp.server.mcpserver", "mcp.server.streamable_http_manager", "uvicorn", "h11")
PROGRAM = str(Path(__file__).with_name("shelf.py"))
ENDS_WITH_PARENT = 1


def become(folder: str, port: int) -> None:
    """Be the program from here on."""
    ctypes.CDLL(None).prctl(ENDS_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.argv = [PROGRAM, folder, str(port)]
    runpy.run_path(PROGRAM, run_name="__main__")


def main() -> None:
    """Serve orders until nobody gives any."""
    for module in PREPARED:
        import_module(module)
    # Whoever ended one looks for its number; nobody asks how it ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        made = os.fork()
        if made == 0:
            become(*json.loads(line))
            return
        sys.stdout.write(f"{made}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
