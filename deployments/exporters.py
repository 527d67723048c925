"""Reads what Ray's exporters, one a node, offer to Prometheus, and puts it on one page."""

from __future__ import annotations

import asyncio

import aiohttp
import ray

_TIMEOUT_S = 5.0
_PREFIX = "ray_racer_"


async def scrape_cluster() -> str:
    """The metrics of this project from all live nodes; a node that does not answer is left out."""
    nodes = await asyncio.to_thread(ray.nodes)
    urls = [
        f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in nodes if node["Alive"]
    ]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        pages = await asyncio.gather(*(_page(session, url) for url in urls))
    return merge(pages)


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(url) as response:
            return await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return ""


def merge(pages: list[str]) -> str:
    """One page in which each metric of ours is described once, whatever page its samples come from."""
    headers: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for page in pages:
        name = ""
        for line in page.splitlines():
            if line.startswith("#"):
                name = line.split(" ", 3)[2] if line.count(" ") >= 2 else ""
                if name.startswith(_PREFIX) and line not in headers.setdefault(name, []):
                    headers[name].append(line)
            elif line.startswith(_PREFIX):
                samples.setdefault(name, []).append(line)
    return "".join("\n".join([*headers.get(name, []), *lines]) + "\n" for name, lines in sorted(samples.items()))
