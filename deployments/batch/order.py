"""In which order the requests of a chunk are submitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from deployments.batch.requests import Item

_BEGINNING = 64
_CHARACTERS_A_TOKEN = 4
_USUAL_ANSWER = 256

T = TypeVar("T")


def submission_order(items: Iterable[tuple[T, Item]]) -> list[tuple[T, Item]]:
    """Requests whose prompts begin alike together, the groups with the longest request first.

    What one of a group has said drafts for the next while it is still at hand; and a long request begun last would
    leave the engine nearly empty at the end.
    """
    groups: dict[str, list[tuple[int, str, T, Item]]] = {}
    for name, item in items:
        text = prompt_text(item)
        groups.setdefault(text[:_BEGINNING], []).append((work(item, text), text, name, item))
    ordered: list[tuple[T, Item]] = []
    for group in sorted(groups.values(), key=lambda group: -max(entry[0] for entry in group)):
        group.sort(key=lambda entry: (entry[1], -entry[0]))
        ordered += [(name, item) for _, _, name, item in group]
    return ordered


def prompt_text(item: Item) -> str:
    """What a request's prompt says, as far as that can be told before it is checked."""
    if item.turns:
        return item.turns[0]
    content: Any = item.body.get("messages" if item.kind == "chat" else "prompt")
    if isinstance(content, list) and item.kind == "chat":
        return "\n".join(str(one.get("content")) for one in content if isinstance(one, dict))
    return content if isinstance(content, str) else str(content)


def work(item: Item, text: str) -> int:
    """Tokens that a request may take, roughly: its prompt, and the answer it asks for."""
    caps = (item.body.get("max_completion_tokens"), item.body.get("max_tokens"))
    cap = next((cap for cap in caps if isinstance(cap, int) and cap > 0), _USUAL_ANSWER)
    choices = item.body.get("n")
    return len(text) // _CHARACTERS_A_TOKEN + cap * (choices if isinstance(choices, int) and choices > 0 else 1)
