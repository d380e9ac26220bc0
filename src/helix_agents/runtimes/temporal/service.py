"""What the runtime asks of a Temporal server: start a turn, inspect one, and which search attributes it knows."""

import logging
from difflib import get_close_matches
from functools import cache
from inspect import signature
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from helix_agents.domain.errors import DefinitionError, RuntimeUnavailableError
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.services import Liveness
from helix_agents.runtimes.executor.workflow_names import name_session, workflow_of

SESSION = SearchAttributeKey.for_keyword("HelixSession")
AGENT = SearchAttributeKey.for_keyword("HelixAgent")


async def connect(address: str, namespace: str, settings: dict[str, Any]) -> Client:
    """A client of a server.

    Raises:
        DefinitionError: the address is not valid, or Temporal's client has no such setting.
        RuntimeUnavailableError: no server answers there, or none that has this namespace.
    """
    _check_settings(settings)
    settings = {"runtime": _quiet_runtime(), **settings}
    try:
        client = await Client.connect(address, namespace=namespace, **settings)
    except ValueError as problem:
        told = f"address={address!r} cannot be used: {problem}; write host:port."
        if "client cert" in str(problem):
            told = "tls has a client certificate or its private key, but not both."
        raise DefinitionError("Temporal", told) from problem
    except (RPCError, RuntimeError) as problem:
        raise RuntimeUnavailableError("Temporal", address, _reason(str(problem))) from problem
    await _check_namespace(client, address)
    return client


def _reason(told: str) -> str:
    """Why there is no connection, in words: Temporal's client describes how its own parts nest."""
    for sign, words in _REASONS.items():
        if sign in told:
            return words
    return told.partition(": tonic::")[0]


_REASONS = {
    "ConnectionRefused": "nothing listens there",
    "UnknownIssuer": "its certificate is not from a CA that this machine trusts; if the CA is your own, name it",
    "NotValidForName": "its certificate is for another name; give the server name that is meant",
    "certificate expired": "its certificate has expired",
    "PrivateKeyParseError": "the private key of the client certificate cannot be read",
    "CertificateParseError": "a certificate that was given cannot be read",
    "NoCertificatesPresented": "a certificate that was given cannot be read",
    "InvalidContentType": "it does not speak TLS",
    "Unauthenticated": "it denies access; check the API key, or the certificate, and the namespace",
    "PermissionDenied": "it denies access; check the API key, or the certificate, and the namespace",
    "hyper::Error": "it ended the connection; it may need TLS, or a client certificate",
}


def _check_settings(settings: dict[str, Any]) -> None:
    # The address is passed separately.
    known = [*signature(Client.connect).parameters.keys() - {"target_host", "namespace"}]
    for name in settings:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else "."
            raise DefinitionError("Temporal", f"client_settings has {name!r}, which its client does not accept{meant}")


async def _check_namespace(client: Client, address: str) -> None:
    """Without its namespace, a server accepts no turn and gives a worker none; whether it may be asked is another
    matter.

    Raises:
        RuntimeUnavailableError: the server has no such namespace.
    """
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as problem:
        if problem.status == RPCStatusCode.NOT_FOUND:
            reason = f"it has no namespace {client.namespace!r}; create it, or name another one"
            raise RuntimeUnavailableError("Temporal", address, reason) from problem


@cache
def _quiet_runtime() -> Runtime:
    """Sends the log of Temporal's core to Python's logging; by itself it would write to standard output."""
    forwarded = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    told = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarded)
    return Runtime(telemetry=TelemetryConfig(logging=told))


def facts_about(run: RunRecord, session: SessionState) -> dict[str, Any]:
    """What an operator can read about a turn without opening our store. Run and attempt identify it."""
    return {
        "session": session.session_id,
        "root": session.root_session_id,
        "agent": session.agent_type,
        "turn": run.turn,
        "user": session.user_id,
        "run": run.run_id,
        "attempt": run.attempt,
    }


def attributes_of(session: SessionState) -> TypedSearchAttributes:
    """The attributes by which an operator finds turns."""
    pairs = [
        SearchAttributePair(SESSION, name_session(session.session_id)),
        SearchAttributePair(AGENT, session.agent_type),
    ]
    return TypedSearchAttributes(pairs)


async def start(client: Client, kind: str, order: Any, run: RunRecord, session: SessionState, **how: Any) -> bool:
    """Start the workflow of this attempt unless it was started before; False if its name belongs to another run.

    That happens to sessions that were deleted and created again, and where several stores share a prefix.
    """
    try:
        await client.start_workflow(
            kind,
            order,
            id=workflow_of(run),
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            # Not USE_EXISTING: it has to be checked whether the existing one belongs to this run.
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            memo=facts_about(run, session),
            **how,
        )
    except WorkflowAlreadyStartedError:
        standing, _ = await inspect(client, run)
        return standing != "missing"
    return True


async def inspect(client: Client, run: RunRecord) -> tuple[Liveness, str | None]:
    """Whether there is a workflow for this attempt, and in which task queue. A workflow that has closed while the run
    is running is as dead as a failed one.

    Raises:
        RuntimeUnavailableError: the server did not answer.
    """
    try:
        found = await client.get_workflow_handle(workflow_of(run)).describe()
        memo = await found.memo()
    except RPCError as problem:
        if problem.status == RPCStatusCode.NOT_FOUND:
            return "missing", None
        raise RuntimeUnavailableError("Temporal", client.service_client.config.target_host, str(problem)) from problem
    if (memo.get("run"), memo.get("attempt")) != (run.run_id, run.attempt):
        return "missing", None
    alive = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)
    return "alive" if found.status in alive else "dead", found.task_queue


def handle_of(client: Client, run: RunRecord) -> WorkflowHandle[Any, Any]:
    """The workflow of this attempt, to wait for."""
    return client.get_workflow_handle(workflow_of(run))


async def knows_attributes(client: Client) -> bool:
    """Whether the namespace has our search attributes; if the server may not be asked, that counts as no."""
    try:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError:
        return False
    return {SESSION.name, AGENT.name} <= set(listed.custom_attributes)


async def register_attributes(client: Client) -> None:
    """Add our search attributes to the namespace; idempotent.

    Raises:
        RuntimeUnavailableError: the server refused.
    """
    if await knows_attributes(client):
        return
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    wanted = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={SESSION.name: keyword, AGENT.name: keyword}
    )
    try:
        await client.operator_service.add_search_attributes(wanted)
    except RPCError as problem:
        if problem.status != RPCStatusCode.ALREADY_EXISTS:
            target = client.service_client.config.target_host
            raise RuntimeUnavailableError("Temporal", target, str(problem)) from problem
