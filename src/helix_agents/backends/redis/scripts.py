"""The five Lua scripts that everything is built on, and how each is called by its hash."""

from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"


@dataclass(frozen=True)
class Script:
    """A script by name; the server keeps it under the hash of its text until it forgets it."""

    name: str
    text: str = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        text = (_FOLDER / f"{self.name}.lua").read_text(encoding="utf-8")
        object.__setattr__(self, "text", text)
        # Redis names scripts by SHA-1; nothing depends on it for security.
        object.__setattr__(self, "digest", sha1(text.encode(), usedforsecurity=False).hexdigest())


ATOMIC = Script("atomic")
INDEX_PUT = Script("index_put")
INDEX_FIND = Script("index_find")
INDEX_PAGE = Script("index_page")
INDEX_SWEEP = Script("index_sweep")
