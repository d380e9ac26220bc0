"""Writes the pages of the reference that are tables of the code: `uv run python docs/generate.py`.

A test fails when a page is not what this program would write.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

REFERENCE = Path(__file__).parent / "reference"


PUBLIC_MODULES = {
    "helix_agents.agent.context": "what the functions that you write are told about a run",
    "helix_agents.agent.hook_events": "the events of [hooks](../concepts/hooks.md)",
    "helix_agents.agent.remote_agents": "the limits of [remote sub-agents](../guides/delegate-to-another-service.md)",
    "helix_agents.domain.chunks": "the [chunks](chunks.md) of a stream",
    "helix_agents.domain.errors": "the [errors](errors.md)",
    "helix_agents.domain.recollections": "how a model is told [memories](../guides/give-agents-memory.md)",
    "helix_agents.domain.usage": "what was used, as [prices](../guides/limit-a-run.md#a-budget) and `usage()` have it",
    "helix_agents.llm.pydantic_ai": "[other models](../guides/choose-a-model.md)",
    "helix_agents.ports": "the interfaces of [a backend](../guides/write-a-backend.md) or a model adapter",
    "helix_agents.runtimes.temporal": "the settings of [Temporal](../guides/run-on-temporal.md)",
    "helix_agents.testing": "[tests of agents](../guides/test-an-agent.md) and the conformance suites",
    "helix_agents.tracing": "[OpenTelemetry](../guides/trace-agents.md)",
}


def errors_page() -> str:
    """Every error by code, grouped by who has to act."""
    from helix_agents.domain import errors

    lines = [
        "# Errors by code",
        "",
        "Every error derives from `HelixError`. Its `code` is stable and appears in logs and HTTP answers; `retryable`",
        "says whether the same call may be tried again. Errors are grouped by who has to act, and live in",
        "`helix_agents.domain.errors`. Those of the state capabilities are on [their page](state-capabilities.md).",
    ]
    groups = [group for group in errors.HelixError.__subclasses__() if group.__module__.startswith(errors.__name__)]
    for group in groups:
        lines += ["", f"## {group.__name__}", "", first_paragraph(group), ""]
        lines += ["| code | error | means | try again |", "|---|---|---|---|"]
        for error in sorted({*descendants(group)} or {group}, key=lambda each: (each.code, each.__name__)):
            again = "yes" if error.retryable else "no"
            lines.append(f"| `{error.code}` | `{error.__name__}` | {first_paragraph(error)} | {again} |")
    return "\n".join([*lines, ""])


def chunks_page() -> str:
    """Every chunk of a stream with its fields."""
    from helix_agents.domain import chunks

    shared = chunks.ChunkHeader.__struct_fields__
    lines = [
        "# Chunks",
        "",
        "A stream consists of chunks. Every chunk also has: " + ", ".join(f"`{name}`" for name in shared) + ".",
        "",
        "| type | class | meaning | fields |",
        "|---|---|---|---|",
    ]
    for chunk in get_args(chunks.StreamChunk):
        fields = ", ".join(f"`{name}`" for name in chunk.__struct_fields__ if name not in shared)
        tag = chunk.__struct_config__.tag
        lines.append(f"| `{tag}` | `{chunk.__name__}` | {first_paragraph(chunk)} | {fields} |")
    return "\n".join([*lines, ""])


def api_page() -> str:
    """The names of the front door; what they are is read from the source when the site is built."""
    import helix_agents

    homes = helix_agents._HOME
    lines = [
        "# API",
        "",
        "Everything you import from `helix_agents`. These modules are public as well; the rest is internal:",
        "",
        *(f"- `{module}`: {holds}" for module, holds in PUBLIC_MODULES.items()),
        "",
    ]
    for name in sorted(homes, key=lambda each: (each.lower(), each)):
        lines += [f"::: {homes[name]}.{name}", ""]
    return "\n".join(lines)


def http_page() -> str:
    """Every route of the agent server, from the document that the server itself gives out."""
    import helix_agents
    from helix_agents.server.openapi import document

    told = document(helix_agents.__version__)
    routes = [(path, method, each) for path, methods in told["paths"].items() for method, each in methods.items()]
    lines = [
        "# HTTP",
        "",
        "The routes of `helix serve` and `AgentServer`. The server describes them itself at `/openapi.json`, with",
        "every field of every response; a test generates requests from that document and checks each response.",
        "",
        "Errors are JSON: `error` is a sentence for users, `detail` is for developers, `code` is",
        "[stable](errors.md), and `retryable` says whether to try again. Every route may return 401, 403, 500 and 503.",
        "Callers send `Authorization: Bearer …`, or the credentials that your `authenticate` reads. The",
        "[console](../guides/watch-in-the-console.md), at `/console` if it is enabled, is not listed here.",
        "",
        "| | | |",
        "|---|---|---|",
    ]
    for path, method, route in routes:
        lines.append(f"| {method.upper()} | [`{path}`](#{anchor(path, method)}) | {route['summary']} |")
    for path, method, route in routes:
        lines += route_section(path, method, route, told["components"]["schemas"])
    return "\n".join([*lines, ""])


def anchor(path: str, method: str) -> str:
    """How both the site and GitHub name the heading of a route."""
    return f"{method}-{re.sub(r'[^a-z0-9_-]', '', path.lower())}"


def route_section(path: str, method: str, route: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    from helix_agents.server.openapi import ALWAYS

    yield from ("", f"## {method.upper()} {path}", "", route["summary"])
    if "description" in route:
        yield from ("", route["description"])
    rows = [
        (each["name"], each["in"], shape(each["schema"]), each["required"], each.get("description", ""))
        for each in route.get("parameters", ())
    ]
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    rows += body_rows(body, schemas) if body else []
    if rows:
        yield from ("", "| name | in | type | |", "|---|---|---|---|")
        for name, place, kind, required, about in rows:
            note = ". ".join(filter(None, ("required" if required else "", about)))
            yield f"| `{name}` | {place} | {kind} | {note} |"
    statuses = {status: each for status, each in route["responses"].items() if int(status) not in ALWAYS}
    answers = ", ".join(f"{status} {shape_of_answer(each)}".strip() for status, each in statuses.items())
    yield from ("", f"Responses: {answers}.")


def body_rows(schema: dict[str, Any], schemas: dict[str, Any]) -> list[tuple[str, str, str, bool, str]]:
    """The fields of a body; of a body that has several forms, those of each under its kind."""
    rows: list[tuple[str, str, str, bool, str]] = []
    for name in names_in(schema):
        form = schemas[name]
        tag = next((each["enum"][0] for each in form["properties"].values() if len(each.get("enum", ())) == 1), None)
        place = "body" if tag is None else f"body, `{tag}`"
        required = form.get("required", ())
        rows += [
            (field, place, shape(each), field in required, each.get("description", ""))
            for field, each in form["properties"].items()
        ]
    return rows


def names_in(schema: dict[str, Any]) -> list[str]:
    if "$ref" in schema:
        return [schema["$ref"].rpartition("/")[2]]
    return [name for each in schema.get("anyOf", ()) for name in names_in(each)]


def shape(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": name}:
            return name.rpartition("/")[2]
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"anyOf": several}:
            return " or ".join(shape(each) for each in several)
        case {"type": "array", "items": each}:
            return f"list of {shape(each)}"
        case {"type": kind}:
            return kind
        case _:
            return "any JSON"


def shape_of_answer(response: dict[str, Any]) -> str:
    content = response.get("content", {})
    schema = content.get("application/json", {}).get("schema")
    record = "" if schema is None or shape(schema) == "ErrorBody" else shape(schema)
    stream = "a stream of events" if "text/event-stream" in content else ""
    return " or ".join(filter(None, (record, stream)))


def descendants(kind: type[Any]) -> Iterator[type[Any]]:
    for below in kind.__subclasses__():
        # Those of one package belong together; a test may have defined others.
        if below.__module__.rpartition(".")[0] == kind.__module__.rpartition(".")[0]:
            yield below
            yield from descendants(below)


def first_paragraph(kind: type[Any]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).replace("|", "\\|")


PAGES = {"errors.md": errors_page, "chunks.md": chunks_page, "api.md": api_page, "http.md": http_page}


def main() -> None:
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"{REFERENCE.name}/{name}\n")


if __name__ == "__main__":
    main()
