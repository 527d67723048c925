"""Not yet."""
import argparse
SUMMARY = DESCRIPTION = "not yet"
def add_arguments(parser: argparse.ArgumentParser) -> None: ...
def execute(args: argparse.Namespace) -> int: return 2
