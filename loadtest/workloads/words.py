"""Names and things that the workloads are written with."""

from __future__ import annotations

FIRST_NAMES = (
    "Amara", "Bruno", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Leona", "Mateo",
    "Nadia", "Oskar", "Priya", "Quentin", "Rosa", "Samir", "Tilda", "Umar", "Vera", "Wanda", "Xenia", "Yusuf", "Zoe",
)  # fmt: skip
LAST_NAMES = (
    "Albrecht", "Bianchi", "Castillo", "Duarte", "Eriksen", "Fontaine", "Galloway", "Hoang", "Ivanova", "Jansen",
    "Kowalski", "Lindqvist", "Moreau", "Novak", "Okafor", "Petrov", "Quispe", "Rossi", "Sato", "Tanaka", "Vargas",
)  # fmt: skip
PRODUCTS = (
    "desk lamp", "rain jacket", "coffee grinder", "hiking backpack", "wireless keyboard", "garden hose", "baby monitor",
    "electric kettle", "yoga mat", "bicycle pump", "picture frame", "phone case", "cutting board", "camping stove",
)  # fmt: skip
CITIES = ("Porto", "Leipzig", "Tampere", "Lyon", "Gdansk", "Bergen", "Utrecht", "Graz", "Bilbao", "Cork", "Brno")
TEAMS = ("billing", "search", "mobile", "warehouse", "security", "website", "support", "data")
TOPICS = (
    "how rainbows form", "why bread rises", "how a bill becomes law", "the causes of inflation", "how vaccines work",
    "what makes a good password", "how tides are caused", "the rules of chess", "how a refrigerator cools",
    "why leaves change colour", "how to plan a small garden", "the history of the bicycle",
    "how batteries store energy", "what a compiler does", "how to read a map", "why the sky is blue", 
    "how bees find flowers", "what black holes are",
    "how to learn a language", "how paper is made", "why we sleep", "how a bridge carries its load",
    "what a database index is", "how glass is blown", "why some metals rust", "how the stock market works",
)  # fmt: skip
PLACES = (
    "a lighthouse in autumn", "a night train", "an abandoned observatory", "a market at dawn", "a library below a lake",
    "a desert railway station", "a mountain hut in a storm", "a theatre after the last show", "a harbour in fog",
    "an orchard in bloom", "a clock tower", "a ferry that never arrives", "a glasshouse in winter",
)  # fmt: skip
CHARACTERS = (
    "a retired cartographer", "two rival beekeepers", "a child who collects echoes", "a tired translator",
    "a baker who cannot sleep", "an apprentice locksmith", "a violinist without a violin", "a lost postman",
    "a botanist with a secret", "a chess player who always loses", "three sisters", "a ship's cook",
)  # fmt: skip
"""Each list is long enough that two conversations rarely share all they are made of."""


def money(amount: int) -> str:
    """An amount as people write it."""
    return f"{amount // 100}.{amount % 100:02d} euros"
