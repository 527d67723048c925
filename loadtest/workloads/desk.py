"""A support desk whose answers follow templates: what one customer is told, many others are told too."""

from __future__ import annotations

import random

from loadtest.workloads.base import Generated, Turn, system, user
from loadtest.workloads.words import FIRST_NAMES, LAST_NAMES, PRODUCTS

TEMPLATES = {
    "refund": "Dear {name}, thank you for writing to us about your {product}. We are sorry that it did not meet your "
    "expectations. We have started the refund for order {order}. The amount will be back on your account within five "
    "working days. You do not have to send the {product} back. Kind regards, the support team.",
    "late": "Dear {name}, thank you for your patience. We have looked into order {order}. Your {product} has left our "
    "warehouse and will reach you within three working days. If it does not, please answer this message and we will "
    "send a new one at once. Kind regards, the support team.",
    "broken": "Dear {name}, we are sorry to hear that your {product} arrived damaged. Please send us a photo of it "
    "together with the number of order {order}. We will then send you a new one free of charge, and you may keep or "
    "recycle the old one. Kind regards, the support team.",
    "address": "Dear {name}, we have changed the address of order {order} as you asked. Your {product} will be "
    "delivered to the new address. Please note that this can take one more day. Kind regards, the support team.",
    "cancel": "Dear {name}, we have cancelled order {order} and the {product} will not be sent. You will not be "
    "charged. If you have paid already, the money will be back within five working days. Kind "
    "regards, the support team.",
}
_COMPLAINTS = {
    "refund": ("I am not happy with the {product}. I want my money back.",
               "The {product} is not what I expected. Refund, please."),
    "late": ("Where is my {product}? I have waited for two weeks.", "My {product} has still not arrived."),
    "broken": ("The {product} came broken out of the box.", "My {product} has a crack, what now?"),
    "address": ("I have moved. Can you send the {product} to my new flat?", "Please change where the {product} goes."),
    "cancel": ("I do not need the {product} any more, please stop the order.", "Cancel my order of the {product}."),
}  # fmt: skip


class Support(Generated):
    """One customer's message; the rules hold the templates, and ask for the one that fits, filled in."""

    name = "support"

    def turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """See :class:`Generated`."""
        kind = rng.choice(sorted(TEMPLATES))
        name = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        order, product = f"{rng.randint(10_000, 99_999)}", rng.choice(PRODUCTS)
        letters = "\n".join(f"[{key}] {text}" for key, text in TEMPLATES.items())
        rules = (
            "You answer customers of a shop. Choose the letter below that fits and write it out, with the customer's "
            f"name, product and order number put in. Write nothing else.\n\n{letters}"
        )
        complaint = rng.choice(_COMPLAINTS[kind]).format(product=product)
        asked = f"My name is {name}, order {order}. {complaint}"
        return (Turn((system(rules), user(asked)), 110),)
