"""What the commands of all packages share: how they tell a wrong option. Standard library only."""

from __future__ import annotations

import argparse
import difflib
import sys
from contextlib import suppress
from typing import Any, NoReturn


class OneSentenceParser(argparse.ArgumentParser):
    """Tells a mistake in one line, without the usage before it; an option must be written in full."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is not known here: argparse leaves that to the parser above, whose help lists no such option."""
        self._words = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Exit 2 after naming an option that does not exist, if there is one, else ``message``.

        argparse would first tell what is missing, as the option whose name is mistyped.
        """
        option = self._unknown_option()
        if option is not None:
            near = difflib.get_close_matches(option, self._option_string_actions, n=1)
            message = f"there is no option {option}" + (f", did you mean {near[0]}?" if near else "")
        self.exit(2, f"error: {message} (try {self.prog} --help)\n")

    def _unknown_option(self) -> str | None:
        """The first word that argparse takes for an option of this parser, and that is none."""
        for word in self._words:
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return None  # what follows is no option, or a command's
            name = word.partition("=")[0]
            if _names_option(name) and name not in self._option_string_actions:
                return name
        return None


def _names_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and " " not in word and not _is_number(word)


def _is_number(word: str) -> bool:
    with suppress(ValueError):
        float(word)
        return True
    return False
