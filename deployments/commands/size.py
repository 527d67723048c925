"""``size``: what a replica of a model needs, and how many requests it holds."""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import asdict

from deployments.commands import positive
from deployments.sizing import GIB, GPUS_GIB, Size, size

SUMMARY = "what a replica of a model needs: memory for weights, cache and store"
DESCRIPTION = (
    "Memory for weights, key-value cache and store of one replica, from the model's configuration alone, and how many "
    "requests of a length it holds at once. docs/kubernetes.md says what follows for pods."
)
_MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--model", default="demo", help="'demo', a local folder, a GGUF file, or a Hub id")
    parser.add_argument(
        "--gpu",
        type=_gpu,
        metavar="NAME|GIB",
        help=f"GPU of a replica: {', '.join(GPUS_GIB)}, or its memory in GiB (default: the processor)",
    )
    parser.add_argument("--context", type=positive, default=4096, help="tokens of prompt and answer (default: 4096)")
    parser.add_argument(
        "--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help="as the engine's setting"
    )
    parser.add_argument("--cache-bytes", type=positive, help="as the engine's setting (default: as the engine chooses)")
    parser.add_argument(
        "--contexts", type=positive, default=1 << 23, help="contexts the store is to keep (default: 8388608)"
    )
    parser.add_argument("--requests", type=positive, help="requests at once; also tells the replicas that they need")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _gpu(text: str) -> int:
    """Memory of a GPU in bytes."""
    if text.lower() in GPUS_GIB:
        return GPUS_GIB[text.lower()] * GIB
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) <= 0:
        known = ", ".join(GPUS_GIB)
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: name one of {known}, or its memory in GiB")
    return int(float(text) * GIB)


def execute(args: argparse.Namespace) -> int:
    """Print the size."""
    from deployments.shape import model_shape
    from racer.config import EngineConfig

    engine = EngineConfig(model=args.model, dtype=args.dtype, device="cpu" if args.gpu is None else "cuda")
    shape = model_shape(engine)
    found = size(shape, args.gpu, args.context, args.contexts, args.cache_bytes)
    replicas = math.ceil(args.requests / found.requests) if args.requests else None
    if args.json:
        print(json.dumps({"model": args.model, "context": args.context} | asdict(found) | {"replicas": replicas}))
        return 0
    for name, value in _lines(found, args.context, replicas):
        print(f"{name:<28}{value}")
    return 0


def _lines(found: Size, context: int, replicas: int | None) -> list[tuple[str, str]]:
    lines = [
        ("weights", _shown(found.weights)),
        ("cache", f"{_shown(found.cache)}, {found.cache // found.token:,} tokens of {found.token:,} bytes"),
        (f"requests of {context:,} tokens", f"{found.requests:,} at once"),
        ("memory of the pod", _shown(found.host)),
        ("Redis maxmemory", f"{_shown(found.store)}, container limit {_shown(found.store_limit)}"),
    ]
    return lines if replicas is None else [*lines, ("replicas", str(replicas))]


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{math.ceil(size_bytes / _MIB)} MiB"
