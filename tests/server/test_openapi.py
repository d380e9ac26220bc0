"""The OpenAPI document tells the truth: whatever is generated from it is answered as it says."""

import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, settings
from schemathesis import checks
from starlette.applications import Starlette
from starlette.routing import Mount

import helix_agents
from helix_agents.server.openapi import document
from helix_agents.server.operations import OPERATIONS
from tests.server.live import ANN, LiveServer, agent_server, bearer
from tests.server.test_executor_routes import settled, start

EXAMPLES = 10
SESSION = "known"


@pytest.fixture(scope="module")
def described() -> Iterator[LiveServer]:
    """A server of the module's own, with a session whose stream has ended."""
    with LiveServer(agent_server(executor={"janitor_seconds": None})) as live, live.client() as client:
        start(client, SESSION, "search")
        settled(client, SESSION)
        yield live


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


schema = schemathesis.openapi.from_dict(document(helix_agents.__version__))

HONEST = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


THE_SAME_EVERY_TIME = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@schema.parametrize()
@THE_SAME_EVERY_TIME
def test_no_answer_is_a_server_error_or_one_that_was_not_announced(
    case: schemathesis.Case, described: LiveServer, session: requests.Session
) -> None:
    # A case that was made to be refused says so by what it was made of: it is left as it is.
    known = _sometimes_a_session_that_is_there(case)
    judged = HONEST if known else [*HONEST, checks.negative_data_rejection]
    case.call_and_validate(base_url=described.url, session=session, headers=bearer(ANN), checks=judged)


def _sometimes_a_session_that_is_there(case: schemathesis.Case) -> bool:
    """Generated ids name nothing; every second case reads what exists, so that success is looked at, too."""
    for given in (case.path_parameters, case.query):
        name = given.get("sessionId") if given and case.method == "GET" else None
        if isinstance(name, str) and name and ord(name[0]) % 2:
            given["sessionId"] = SESSION
            return True
    return False


# What a generator takes for a letter, servers need not: that is left to the test above.
allowed = schemathesis.openapi.from_dict(document(helix_agents.__version__))
allowed.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE], codec="ascii")


# One that has no body has no form.
@allowed.include(method="POST").exclude(path_regex="/cancel$").parametrize()
@THE_SAME_EVERY_TIME
def test_what_the_document_allows_is_not_refused_for_its_form(
    case: schemathesis.Case, described: LiveServer, session: requests.Session
) -> None:
    body = cast("dict[str, Any]", case.body)
    if case.path_parameters:
        case.path_parameters["sessionId"] = SESSION
        body.pop("sessionId", None)
    elif case.path == "/start":
        # An agent's own state has a form that the document of all agents does not know.
        body.pop("state", None)
        body["agentType"] = "director"
    else:
        body["id" if case.path == "/chat" else "sessionId"] = SESSION
    # Of a list of messages the last one counts, and no schema can say of what form the last one has to be.
    assume(case.path != "/chat" or body.get("message") is not None)
    answer = case.call(base_url=described.url, session=session, headers=bearer(ANN))
    assume("64 bits" not in answer.text)
    assert answer.status_code != 400, (body, answer.json())


def test_every_route_is_described(described: LiveServer) -> None:
    with described.client() as client:
        told = client.get("/openapi.json").json()
    assert told == document(helix_agents.__version__)
    paths = told["paths"]
    listed = {(method.upper(), path) for path, ways in paths.items() for method in ways}
    outside = {"session_id": "sessionId", "run_id": "runId"}
    known = {
        (each.method, re.sub(r"\{(\w+)\}", lambda at: f"{{{outside.get(at[1], at[1])}}}", each.path))
        for each in OPERATIONS
    }
    assert listed - known == {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json")}
    assert known <= listed


@pytest.mark.parametrize("prefix", ["", "/mounted/below"])
def test_a_method_that_is_not_there_is_told_all_that_are(prefix: str) -> None:
    outer = Starlette(routes=[Mount(prefix, agent_server())])
    methods: dict[str, set[str]] = {}
    for each in OPERATIONS:
        methods.setdefault(each.path.replace("{session_id}", "a%2Fb"), set()).add(each.method)
    with LiveServer(outer) as live, live.client() as client:
        for path, there in methods.items():
            response = client.put(prefix + path)
            assert response.status_code == 405
            assert set(response.headers["allow"].split(", ")) - {"HEAD"} == there, path
