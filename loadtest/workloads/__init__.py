"""Workloads by name, and what their lengths are."""

from __future__ import annotations

from pathlib import Path

from loadtest.errors import UserError
from loadtest.workloads.agent import Agent
from loadtest.workloads.base import Conversation, Generated, Turn, Workload
from loadtest.workloads.chat import Chat, Prose
from loadtest.workloads.code import CodeEdit
from loadtest.workloads.desk import Support
from loadtest.workloads.documents import Retrieval, Summary
from loadtest.workloads.files import FromFile

__all__ = ["NAMES", "Conversation", "FromFile", "Turn", "Workload", "is_file", "open_workload", "prompt_length"]

_GENERATED: dict[str, type[Generated]] = {
    kind.name: kind for kind in (Chat, CodeEdit, Retrieval, Support, Summary, Agent, Prose)
}
NAMES = tuple(_GENERATED)


def open_workload(what: str, seed: int) -> Workload:
    """The workload named ``what``, or the one that a JSONL file holds.

    Raises:
        UserError: there is no such workload, or the file holds none.
    """
    if what in _GENERATED:
        return _GENERATED[what](seed)
    if is_file(what):
        return FromFile(Path(what))
    raise UserError(f"workload {what!r} is not known; give one of {', '.join(NAMES)}, or the path of a JSONL file")


def is_file(what: str) -> bool:
    """Whether ``what`` is the path of a workload, not its name; a file's requests are the same for any seed."""
    return "/" in what or what.endswith(".jsonl")


def prompt_length(conversation: Conversation) -> int:
    """Characters that are sent as new in a conversation: its prompt, or its turns' own messages."""
    if conversation.prompt is not None:
        return len(conversation.prompt)
    return sum(len(str(message.get("content", ""))) for turn in conversation.turns for message in turn.messages)
