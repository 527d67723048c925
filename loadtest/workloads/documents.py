"""Work on a given document: answers that quote it, and summaries of it."""

from __future__ import annotations

import random

from loadtest.workloads.base import Generated, Turn, lognormal, system, user
from loadtest.workloads.words import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, TEAMS, TOPICS, money

_RULES = (
    ("Travel",
     "Employees of the {team} team may travel to {city} {n} times a year. A hotel night may cost up to {money}, "
     "breakfast included. {name} approves requests, which must arrive {days} days before the journey."),
    ("Equipment", "Each member of the {team} team gets one {product}, worth up to {money}, every {n} years. Broken "
     "equipment is sent to {city} together with form {form}, and {name} answers within {days} days."),
    ("Working hours",
     "The office in {city} is open from {n} in the morning. The {team} team meets {name} once in {days} "
     "days. Whoever works longer writes it down on form {form} and is paid {money} an hour."),
    ("Expenses", "Receipts above {money} need the signature of {name}. The {team} team in {city} sends them with form "
     "{form}, at most {days} days after the purchase, and no more than {n} at a time."),
    ("Training",
     "Courses about {topic} are offered in {city} {n} times a year and cost {money}. {name} keeps the list. "
     "Members of the {team} team put down their names {days} days before a course begins, on form {form}."),
    ("Visitors",
     "Visitors of the {team} team wait at the gate in {city} until {name} comes. A badge costs {money} if it "
     "is lost. Groups of more than {n} people are announced {days} days ahead with form {form}."),
)  # fmt: skip
_EVENTS = (
    "{name} reported that the {team} team had shipped {n} fixes and that the {product} project was {days} days late.",
    "{name} asked whether the office in {city} could lend two people to the {team} team; this was agreed.",
    "The budget for the {product} was raised by {money}, after {name} had shown the costs of last quarter.",
    "{name} warned that form {form} was still missing for {n} orders from {city}.",
    "It was decided that the {team} team will move to {city} within {days} days, and {name} will prepare a plan.",
    "{name} presented a study about {topic}; the {team} team will repeat it with {n} more customers.",
)


def _filled(rng: random.Random, text: str) -> str:
    return text.format(
        team=rng.choice(TEAMS),
        city=rng.choice(CITIES),
        product=rng.choice(PRODUCTS),
        topic=rng.choice(TOPICS),
        name=f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
        money=money(rng.randint(2000, 90000)),
        n=rng.randint(2, 9),
        days=rng.randint(3, 60),
        form=f"{rng.choice('ABCDEFGH')}-{rng.randint(100, 999)}",
    )


class Retrieval(Generated):
    """Answers over a handbook given in the prompt, with the passages quoted; a second question half of the time."""

    name = "rag"
    most_turns = 2

    def turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """See :class:`Generated`."""
        sections = rng.sample(_RULES, rng.randint(4, len(_RULES)))
        handbook = "\n\n".join(f"{i}. {title}\n{_filled(rng, text)}" for i, (title, text) in enumerate(sections, 1))
        titles = rng.sample([title for title, _ in sections], 2)
        rules = "Answer from the document alone. First quote the passage that answers the question, then answer it."
        first = f"{handbook}\n\nWhat are the rules about {titles[0].lower()}? Name all amounts, days and people."
        turns = [Turn((system(rules), user(first)), lognormal(rng, 110, 0.3, 48, 220))]
        if rng.random() < 0.5:
            turns.append(Turn((user(f"And what about {titles[1].lower()}?"),), lognormal(rng, 90, 0.3, 48, 180)))
        return tuple(turns)


class Summary(Generated):
    """Minutes of a meeting, to be summed up."""

    name = "summary"

    def turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """See :class:`Generated`."""
        minutes = [_filled(rng, rng.choice(_EVENTS)) for _ in range(rng.randint(8, 16))]
        asked = f"Sum up these minutes in a few sentences. Keep names and numbers.\n\n{' '.join(minutes)}"
        return (Turn((user(asked),), lognormal(rng, 90, 0.3, 48, 180)),)
