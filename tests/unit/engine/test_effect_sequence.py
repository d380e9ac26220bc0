"""The number of the effect sequence is raised with the loop."""

import ast
import hashlib
import inspect
from typing import cast

from helix_agents.engine import plain, turn

# What the loop looked like when it got its number: raise EFFECT_SEQUENCE together with this.
KNOWN = {4: "b2b01881b0ece5f2"}


def shape_of(*functions: object) -> str:
    """The code of functions, without comments, docstrings and layout."""
    digest = hashlib.sha256()
    for function in functions:
        tree = ast.parse(inspect.getsource(function))  # pyright: ignore[reportArgumentType]
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                first = body[0].value
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    body[:1] = [] if len(body) > 1 else [ast.Pass()]
        digest.update(_dumped(tree).encode())
    return digest.hexdigest()[:16]


def _dumped(node: object) -> str:
    """The tree as text, without what is empty: each Python has other empty fields."""
    if isinstance(node, list):
        return f"[{','.join(map(_dumped, cast('list[object]', node)))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = (f"{name}={_dumped(value)}" for name, value in ast.iter_fields(node) if value not in (None, []))
    return f"{type(node).__name__}({','.join(fields)})"


def test_a_changed_loop_has_a_new_number() -> None:
    """A history that was written by another loop must not be replayed by this one."""
    now = shape_of(turn, plain.PlainOps, plain.drive_call, plain.is_in_store, plain._effects_of)  # pyright: ignore[reportPrivateUsage]
    assert KNOWN.get(plain.EFFECT_SEQUENCE) == now, f"raise EFFECT_SEQUENCE if effects changed, and note {now} here"
