"""The keyboard of a terminal chat: asked for a line, or glanced at while an agent works."""

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Keyboard:
    """Lines that a person types. Lines typed without a prompt are kept, and returned where any line may be typed.

    A line that is not text answers nothing: `note` says so, and the next line is asked for in its place.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._typed: deque[str] = deque()
        self._is_terminal = sys.stdin.isatty()
        if self._is_terminal:
            # Importing it gives `input` line editing and a history.
            with suppress(ImportError):
                import readline

                _ = readline

    def ask(self, prompt: str) -> str:
        """The next line.

        Raises:
            EOFError: there are no more.
            KeyboardInterrupt: Ctrl-C.
        """
        if self._typed:
            line = self._typed.popleft()
            sys.stdout.write(f"{prompt}{line}\n")
            return line
        return self.ask_now(prompt)

    def ask_now(self, prompt: str) -> str:
        """A line typed after the prompt was shown: kept lines must not answer a question that came later.

        Raises:
            EOFError: there are no more.
            KeyboardInterrupt: Ctrl-C.
        """
        while not self._is_text(line := input(prompt)):
            pass
        return line

    def keep(self, line: str) -> None:
        """Return this line before anything else is read, if it is text."""
        if self._is_text(line):
            self._typed.append(line)

    def _is_text(self, line: str) -> bool:
        try:
            line.encode()
        except UnicodeEncodeError:
            self._note(f"{line!r} is not UTF-8 text, so it was not used")
            return False
        return True

    def glance(self, seconds: float) -> list[str]:
        """Lines that were typed meanwhile; waits at most this long for one."""
        if not self._is_terminal:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        # Bypasses Python's own buffer, which would hide what it read ahead from the next glance.
        return os.read(sys.stdin.fileno(), 65_536).decode(errors="surrogateescape").splitlines() if ready else []
