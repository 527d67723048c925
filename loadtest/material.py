"""The workload that a run's settings name, checked against the other settings."""

from __future__ import annotations

from loadtest.errors import UserError
from loadtest.settings import RunSettings
from loadtest.workloads import FromFile, Workload, open_workload


def workload_of(settings: RunSettings) -> Workload:
    """The workload of a run.

    Raises:
        UserError: it does not exist, cannot be replayed, or a setting has no effect on it.
    """
    workload = open_workload(settings.workload, settings.seed)
    if settings.load.replay is not None and not isinstance(workload, FromFile):
        raise UserError("a replay needs a JSONL file as workload, whose lines have at_s")
    if settings.think_s and workload.most_turns == 1:
        raise UserError(
            f"think_s={settings.think_s:g} is a pause between the turns of a conversation, and those of "
            f"{workload.name} have one turn; leave it out"
        )
    return workload
