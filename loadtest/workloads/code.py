"""Edits of code: a module, one change to it, and the whole module is asked back."""

from __future__ import annotations

import random

from loadtest.workloads.base import Generated, Turn, system, user

_NOUNS = ("order", "invoice", "ticket", "parcel", "booking", "reading", "account", "route", "sensor", "recipe")
_FIELDS = (
    "name",
    "price",
    "weight",
    "status",
    "owner",
    "created",
    "total",
    "count",
    "limit",
    "label",
    "colour",
    "region",
)
_TYPES = {"name": "str", "status": "str", "owner": "str", "label": "str", "colour": "str", "region": "str"}
_VERBS = ("load", "filter", "sort", "group", "sum", "find", "merge", "print")


class CodeEdit(Generated):
    """A Python module of generated classes and functions; the answer repeats most of it."""

    name = "code-edit"

    def turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """See :class:`Generated`."""
        noun = rng.choice(_NOUNS)
        fields = rng.sample(_FIELDS, rng.randint(3, 5))
        verbs = rng.sample(_VERBS, rng.randint(2, 3))
        code = _module(noun, fields, verbs)
        change = rng.choice(
            (
                f"Rename the class {noun.title()} to {noun.title()}Record everywhere.",
                f"Rename the field {fields[0]} to {fields[0]}_value everywhere.",
                f"Add a field `note: str` to the class {noun.title()}.",
                f"Add a docstring of one line to the function {verbs[0]}_{noun}s.",
                f"Rename the function {verbs[-1]}_{noun}s to {verbs[-1]}_all_{noun}s.",
            )
        )
        asked = f"{change} Answer with the whole file and nothing else.\n\n```python\n{code}```"
        rules = system("You edit Python code. You change only what you are asked to change.")
        return (Turn((rules, user(asked)), len(code) // 3 + 40),)


def _module(noun: str, fields: list[str], verbs: list[str]) -> str:
    kind = noun.title()
    lines = ["from dataclasses import dataclass", "", "", "@dataclass", f"class {kind}:"]
    lines += [f"    {field}: {_TYPES.get(field, 'float')}" for field in fields]
    lines += ["", "    def is_valid(self) -> bool:", f"        return self.{fields[0]} is not None"]
    for place, verb in enumerate(verbs):
        field = fields[(place + 1) % len(fields)]
        lines += ["", "", f"def {verb}_{noun}s({noun}s: list[{kind}]) -> list[{kind}]:"]
        lines += {
            "load": [f"    return [{noun} for {noun} in {noun}s if {noun}.is_valid()]"],
            "filter": [
                "    kept = []",
                f"    for {noun} in {noun}s:",
                f"        if {noun}.{field}:",
                f"            kept.append({noun})",
                "    return kept",
            ],
            "sort": [f"    return sorted({noun}s, key=lambda {noun}: {noun}.{field})"],
            "group": [
                "    groups = {}",
                f"    for {noun} in {noun}s:",
                f"        groups.setdefault({noun}.{field}, []).append({noun})",
                "    return list(groups.values())[0]",
            ],
            "sum": [
                "    total = 0",
                f"    for {noun} in {noun}s:",
                f"        total += {noun}.{field}",
                "    print(total)",
                f"    return {noun}s",
            ],
            "find": [
                f"    for {noun} in {noun}s:",
                f"        if {noun}.{field} == {noun}s[0].{field}:",
                f"            return [{noun}]",
                "    return []",
            ],
            "merge": [f"    seen = {{{noun}.{field}: {noun} for {noun} in {noun}s}}", "    return list(seen.values())"],
            "print": [
                f"    for {noun} in {noun}s:",
                f"        print({noun}.{fields[0]}, {noun}.{field})",
                f"    return {noun}s",
            ],
        }[verb]
    return "\n".join(lines) + "\n"
