"""Benchmark files as prompts, grouped into suites and categories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from racer.commands.inputs import BadLine, Item, read_items
from racer.errors import InputError

ALL = "all"


@dataclass(frozen=True)
class Question:
    """One line of a benchmark file. ``groups``: names of the table's rows that count it."""

    item: Item
    groups: tuple[str, ...]


def read_questions(paths: list[str], limit_per_category: int | None) -> list[Question]:
    """The files' questions in order, at most so many of each category.

    With one suite, rows are its categories; with several, each suite and each of its categories, as ``suite/category``
    where it has more than one. A line's ``suite`` goes before its file's name, a file's name is the category of lines
    without one.

    Raises:
        InputError: a file cannot be read, is empty, or has a line that cannot be decoded.
    """
    named = [(*_names(path, item), item) for path in paths for item in _items(path)]
    categories: dict[str, set[str]] = {}
    for suite, category, _ in named:
        categories.setdefault(suite, set()).add(category)
    taken: Counter[tuple[str, str]] = Counter()
    questions = []
    for suite, category, item in named:
        taken[suite, category] += 1
        if limit_per_category is None or taken[suite, category] <= limit_per_category:
            groups = [category]
            if len(categories) > 1:
                groups = [suite, f"{suite}/{category}"] if len(categories[suite]) > 1 else [suite]
            questions.append(Question(item, (*groups, ALL)))
    return questions


def group_order(questions: list[Question]) -> list[str]:
    """All groups in the order of their first question, the total last."""
    return [*dict.fromkeys(group for q in questions for group in q.groups if group != ALL), ALL]


def _items(path: str) -> list[Item]:
    items = []
    for item in read_items(path, strict=False):
        if isinstance(item, BadLine):
            raise InputError(f"{path}:{item.line}: {item.error}")
        items.append(item)
    return items


def _names(path: str, item: Item) -> tuple[str, str]:
    stem = Path(path).stem
    return str(item.metadata.get("suite", stem)), str(item.metadata.get("category", stem))
