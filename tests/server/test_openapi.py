"""The OpenAPI document tells the truth: whatever is generated from it is answered as it says."""

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, settings
from schemathesis import checks
from schemathesis.core.result import Ok
from schemathesis.pytest.lazy import get_all_tests
from starlette.applications import Starlette
from starlette.routing import Mount

import helix_agents
from helix_agents.server.openapi import document
from helix_agents.server.operations import OPERATIONS
from tests.server.live import ANN, LiveServer, agent_server, bearer
from tests.server.test_executor_routes import settled, start

EXAMPLES = 10
SESSION = "known"
BY_CALENDAR = {"cron": "0 7 * * 1-5", "timezone": "Europe/Berlin"}


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


DOCUMENT = document(helix_agents.__version__)
EVERY = sorted((method.upper(), path) for path, ways in DOCUMENT["paths"].items() for method in ways)

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


def play(schema: schemathesis.BaseSchema, method: str, path: str, judge: Callable[[schemathesis.Case], None]) -> None:
    """Have every case of an operation judged.

    Cases are made here and not by `schema.parametrize()`, which makes all of them in every process that collects tests:
    that takes longer than to collect all other tests.
    """

    def test(case: schemathesis.Case) -> None:
        judge(case)

    only = schema.include(method=method, path=path)
    [made] = get_all_tests(schema=only, test_func=test, settings=THE_SAME_EVERY_TIME, given_kwargs=None)
    assert isinstance(made, Ok), made.err()
    _, judge_all = made.ok()
    judge_all()


@pytest.fixture(scope="module")
def whole() -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(DOCUMENT)


@pytest.mark.parametrize(("method", "path"), EVERY)
def test_no_answer_is_a_server_error_or_one_that_was_not_announced(
    method: str, path: str, whole: schemathesis.BaseSchema, described: LiveServer, session: requests.Session
) -> None:
    play(whole, method, path, lambda case: _answered_as_announced(case, described, session))


def _answered_as_announced(case: schemathesis.Case, described: LiveServer, session: requests.Session) -> None:
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


@pytest.fixture(scope="module")
def allowed() -> schemathesis.BaseSchema:
    """What a generator takes for a letter, servers need not: that is left to the test above."""
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE], codec="ascii")
    return schema


# One that has no body has no form.
WITH_A_BODY = [each for each in EVERY if each[0] in ("POST", "PUT") and not each[1].endswith("/cancel")]


@pytest.mark.parametrize(("method", "path"), WITH_A_BODY)
def test_what_the_document_allows_is_not_refused_for_its_form(
    method: str, path: str, allowed: schemathesis.BaseSchema, described: LiveServer, session: requests.Session
) -> None:
    play(allowed, method, path, lambda case: _not_refused(case, described, session))


def _not_refused(case: schemathesis.Case, described: LiveServer, session: requests.Session) -> None:
    body = cast("dict[str, Any]", case.body)
    if case.method == "PUT":
        body["agentType"] = "director"
        # Which fields make a cron expression, and which timezones there are, no schema can say.
        body.update(BY_CALENDAR if body.get("cron") is not None else {})
        # To a schema, 7.0 is a whole number.
        body.update({name: int(body[name]) for name in ("at", "everyMs") if body.get(name) is not None})
    elif "sessionId" in (case.path_parameters or {}):
        case.path_parameters["sessionId"] = SESSION
        body.pop("sessionId", None)
    elif case.path == "/start":
        # An agent's own state has a form that the document of all agents does not know.
        body.pop("state", None)
        body["agentType"] = "director"
    elif not case.path.startswith("/schedules"):
        body["id" if case.path == "/chat" else "sessionId"] = SESSION
    # Of a list of messages the last one counts, and no schema can say of what form the last one has to be.
    assume(case.path != "/chat" or body.get("message") is not None)
    answer = case.call(base_url=described.url, session=session, headers=bearer(ANN))
    assume("64 bits" not in answer.text)
    assert answer.status_code != 400, (body, answer.json())


def test_every_route_is_described(described: LiveServer) -> None:
    with described.client() as client:
        told = client.get("/openapi.json").json()
    assert told == msgspec.json.decode(msgspec.json.encode(DOCUMENT))
    paths = told["paths"]
    listed = {(method.upper(), path) for path, ways in paths.items() for method in ways}
    outside = {"session_id": "sessionId", "run_id": "runId", "schedule_id": "scheduleId"}
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
        path = each.path.replace("{session_id}", "a%2Fb").replace("{schedule_id}", "a%2Fb")
        methods.setdefault(path, set()).add(each.method)
    with LiveServer(outer) as live, live.client() as client:
        for path, there in methods.items():
            response = client.patch(prefix + path)
            assert response.status_code == 405
            assert set(response.headers["allow"].split(", ")) - {"HEAD"} == there, path
