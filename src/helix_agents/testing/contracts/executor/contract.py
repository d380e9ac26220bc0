"""All scenarios of an executor, combined in one class to inherit."""

from helix_agents.testing.contracts.executor.budgets import BudgetsContract
from helix_agents.testing.contracts.executor.checking import CheckingContract
from helix_agents.testing.contracts.executor.companion_crashes import CompanionCrashesContract
from helix_agents.testing.contracts.executor.companion_lives import CompanionLivesContract
from helix_agents.testing.contracts.executor.companions import CompanionsContract
from helix_agents.testing.contracts.executor.conversations import ConversationsContract
from helix_agents.testing.contracts.executor.deadlines import DeadlinesContract
from helix_agents.testing.contracts.executor.deploys import DeploysContract
from helix_agents.testing.contracts.executor.entry_table import EntryTableContract
from helix_agents.testing.contracts.executor.expiring import ExpiringContract
from helix_agents.testing.contracts.executor.flows import FlowsContract
from helix_agents.testing.contracts.executor.handing_over import HandingOverContract
from helix_agents.testing.contracts.executor.hooks import HooksContract
from helix_agents.testing.contracts.executor.janitors import JanitorsContract
from helix_agents.testing.contracts.executor.long_conversations import LongConversationsContract
from helix_agents.testing.contracts.executor.merging import MergingContract
from helix_agents.testing.contracts.executor.models import ModelsContract
from helix_agents.testing.contracts.executor.nested_answers import NestedAnswersContract
from helix_agents.testing.contracts.executor.offering import OfferingContract
from helix_agents.testing.contracts.executor.pictures import PicturesContract
from helix_agents.testing.contracts.executor.provider_tools import ProviderToolsContract
from helix_agents.testing.contracts.executor.queueing import QueueingContract
from helix_agents.testing.contracts.executor.refreshing import RefreshingContract
from helix_agents.testing.contracts.executor.remembering import RememberingContract
from helix_agents.testing.contracts.executor.returning import ReturningContract
from helix_agents.testing.contracts.executor.scheduling import SchedulingContract
from helix_agents.testing.contracts.executor.skills import SkillsContract
from helix_agents.testing.contracts.executor.steering import SteeringContract
from helix_agents.testing.contracts.executor.stopping import StoppingContract
from helix_agents.testing.contracts.executor.sub_agents import SubAgentsContract
from helix_agents.testing.contracts.executor.taking_along import TakingAlongContract
from helix_agents.testing.contracts.executor.tools import ToolsContract
from helix_agents.testing.contracts.executor.tree_stops import TreeStopsContract
from helix_agents.testing.contracts.executor.waiting import WaitingContract
from helix_agents.testing.contracts.executor.waking import WakingContract
from helix_agents.testing.contracts.executor.webhooks import WebhooksContract
from helix_agents.testing.contracts.executor.workspaces import WorkspacesContract

__all__ = ["ExecutorContract"]


class ExecutorContract(
    ConversationsContract,
    CheckingContract,
    ToolsContract,
    MergingContract,
    OfferingContract,
    PicturesContract,
    ModelsContract,
    ProviderToolsContract,
    FlowsContract,
    HandingOverContract,
    TakingAlongContract,
    BudgetsContract,
    LongConversationsContract,
    SkillsContract,
    WorkspacesContract,
    RememberingContract,
    WaitingContract,
    WakingContract,
    DeadlinesContract,
    StoppingContract,
    QueueingContract,
    SteeringContract,
    SchedulingContract,
    WebhooksContract,
    ReturningContract,
    EntryTableContract,
    HooksContract,
    RefreshingContract,
    DeploysContract,
    ExpiringContract,
    JanitorsContract,
    CompanionsContract,
    CompanionLivesContract,
    CompanionCrashesContract,
    SubAgentsContract,
    NestedAnswersContract,
    TreeStopsContract,
):
    """Everything an executor has to guarantee: inherit it and provide the fixtures `open_executor` and `open_parts`."""
