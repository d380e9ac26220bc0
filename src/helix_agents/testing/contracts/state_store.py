"""The whole contract of a state store, combined in one class to inherit."""

from helix_agents.testing.contracts.checkpoints import CheckpointsContract
from helix_agents.testing.contracts.commits import CommitsContract
from helix_agents.testing.contracts.crashes import CrashesContract
from helix_agents.testing.contracts.deliveries import DeliveriesContract
from helix_agents.testing.contracts.effects import EffectsContract
from helix_agents.testing.contracts.flags import FlagsContract
from helix_agents.testing.contracts.histories import HistoriesContract
from helix_agents.testing.contracts.lineage import LineageContract
from helix_agents.testing.contracts.listing import ListingContract
from helix_agents.testing.contracts.messages import MessagesContract
from helix_agents.testing.contracts.pending import PendingContract
from helix_agents.testing.contracts.processes import KillsContract, ProcessesContract
from helix_agents.testing.contracts.queues import QueuesContract
from helix_agents.testing.contracts.races import RacesContract
from helix_agents.testing.contracts.recovery import RecoveryContract
from helix_agents.testing.contracts.runs import RunsContract
from helix_agents.testing.contracts.saving import SavingContract
from helix_agents.testing.contracts.schedules import SchedulesContract
from helix_agents.testing.contracts.sessions import SessionsContract
from helix_agents.testing.contracts.settling import SettlingContract
from helix_agents.testing.contracts.staging import StagingContract
from helix_agents.testing.contracts.store_handles import OpenStore
from helix_agents.testing.contracts.sub_sessions import SubSessionsContract
from helix_agents.testing.contracts.whole_store import WholeStoreContract

__all__ = ["OpenStore", "StateStoreContract"]


class StateStoreContract(
    SessionsContract,
    SavingContract,
    ListingContract,
    MessagesContract,
    LineageContract,
    RunsContract,
    RecoveryContract,
    CheckpointsContract,
    SubSessionsContract,
    StagingContract,
    FlagsContract,
    PendingContract,
    EffectsContract,
    QueuesContract,
    SchedulesContract,
    DeliveriesContract,
    CommitsContract,
    SettlingContract,
    WholeStoreContract,
    HistoriesContract,
    CrashesContract,
    RacesContract,
    ProcessesContract,
    KillsContract,
):
    """Everything a state store has to guarantee: inherit it and provide the fixtures `open_store` and `store_url`.

    For a store whose data lives in one process, set `several_processes = False` instead of a `store_url`.
    """
