"""Which skills a run tells its model about: looked up once, before its first model call, and kept with the reply."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import takewhile

from helix_agents.agent.failures import Contained, ControlFlow
from helix_agents.agent.skills import problem_with_skill, skill_of, skills_fragment
from helix_agents.domain.errors import SkillsUnavailableError
from helix_agents.domain.messages import AssistantMessage
from helix_agents.domain.skills import skills_message
from helix_agents.domain.texts import said_by, storable
from helix_agents.domain.transcript import hands_over
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.shown import Shown
from helix_agents.ports.skills import PATIENCE_SECONDS, SkillInfo, SkillProvider


async def settle_skills(scope: RunScope, provider: SkillProvider) -> None:
    """Put the run's skills on record. What an earlier reply of the run was told is kept, whichever process continues
    it, unless another agent has taken over since.

    Raises:
        SkillsUnavailableError: the provider could not list them.
    """
    last = scope.last_reply()
    is_of_run = last is not None and (last.id or "").rpartition(".")[0] == scope.run.run_id
    if is_of_run and not _has_just_taken_over(scope):
        return
    with scope.stop.cutting():
        fragment = await _ask(scope, provider)
        shown = _shown(scope)
        if fragment != (shown.skills or ""):
            scope.carried.tell_with_reply(skills_message(fragment))


def _has_just_taken_over(scope: RunScope) -> bool:
    results = takewhile(lambda each: not isinstance(each, AssistantMessage), reversed(scope.transcript))
    return any(map(hands_over, results))


def with_skills(scope: RunScope, instructions: str) -> str:
    """The agent's instructions, followed by what is on record about its skills."""
    told = _shown(scope).skills
    return "\n\n".join(part for part in (instructions, told) if part)


async def _ask(scope: RunScope, provider: SkillProvider) -> str:
    wanted = sorted({*scope.agent.preload_skills})
    limit = asyncio.timeout(PATIENCE_SECONDS)
    try:
        with Contained("The provider of skills"):
            async with limit:
                listed = _usable(scope, await provider.list_skills())
                active = [await skill_of(provider, name) for name in wanted if name in listed]
    except (Exception, ControlFlow) as problem:
        log_exception("skills.unavailable", problem, session_id=scope.session.session_id)
        said = f"{type(problem).__name__}: {said_by(problem)}"
        reason = f"the provider did not answer within {PATIENCE_SECONDS:g} seconds" if limit.expired() else said
        raise SkillsUnavailableError(scope.agent.name, reason) from problem
    loaded = [each for each in active if each is not None]
    known = {each.name for each in loaded}
    for name in wanted:
        if name not in known:
            _warn(scope, "skills.preload_unknown", name, "there is no such skill")
    return storable(skills_fragment(list(listed.values()), loaded, can_copy=scope.agent.workspace is not None))


def _usable(scope: RunScope, listed: Sequence[SkillInfo]) -> dict[str, SkillInfo]:
    """The skills by name, without those that a model could not request or choose."""
    found: dict[str, SkillInfo] = {}
    for each in listed:
        problem = problem_with_skill(each.name, each.description)
        if problem is None:
            found[each.name] = each
        else:
            _warn(scope, "skills.left_out", each.name, problem)
    return found


def _warn(scope: RunScope, event: str, name: str, reason: str) -> None:
    about = {"agent": scope.agent.name, "session_id": scope.session.session_id}
    log_event(event, level=logging.WARNING, **about, skill=name, reason=reason)


def _shown(scope: RunScope) -> Shown:
    shown = scope.shown
    assert shown is not None
    shown.follow()
    return shown
