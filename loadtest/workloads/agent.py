"""An agent that calls tools in a loop: many short requests over a growing conversation, answers in one fixed form."""

from __future__ import annotations

import json
import random

from loadtest.workloads.base import Generated, Turn, system, user
from loadtest.workloads.words import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS

_RULES = """You work through a task with tools. Answer each time with one JSON object and nothing else:
{"thought": "why", "tool": "name of the tool", "arguments": {"name": "value"}}
Tools: find_customer(name), list_orders(customer), check_stock(product, city), send_mail(to, subject, text),
finish(report)
Example: {"thought": "I need the customer's number.", "tool": "find_customer", "arguments": {"name": "Ada Berg"}}"""


class Agent(Generated):
    """Three to five calls; the tools' results are scripted, whatever was called, so that every server sees the same."""

    name = "agent"
    most_turns = 5

    def turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """See :class:`Generated`."""
        name = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        product, city = rng.choice(PRODUCTS), rng.choice(CITIES)
        customer = f"C-{rng.randint(1000, 9999)}"
        task = f"Task: find out whether {name} can pick up the {product} in {city}, and write a mail about it."
        results = [
            {"customer": customer, "name": name, "city": rng.choice(CITIES)},
            {
                "orders": [
                    {"id": rng.randint(10_000, 99_999), "product": item, "state": rng.choice(("paid", "open", "sent"))}
                    for item in [product, *rng.sample(PRODUCTS, rng.randint(1, 3))]
                ]
            },
            {"product": product, "city": city, "in_stock": rng.randint(0, 40), "shelf": f"{rng.randint(1, 60)}"},
            {"sent": True, "to": name, "number": rng.randint(100_000, 999_999)},
        ]
        turns = [Turn((system(_RULES), user(task)), 72)]
        turns += [
            Turn((user(f"Result: {json.dumps(result)}\nGo on with the next call."),), 72)
            for result in results[: rng.randint(2, len(results))]
        ]
        return tuple(turns)
