"""The Grafana dashboard: what an operator looks at, in the order of questions."""

from __future__ import annotations

from typing import Any, NamedTuple

_WINDOW = "[$__rate_interval]"
_MODEL = 'model=~"$model"'
_WIDTH, _HEIGHT = 8, 8


class Panel(NamedTuple):
    """One graph: ``queries`` maps what a line is called to PromQL; ``unit`` as Grafana names it."""

    title: str
    unit: str
    queries: dict[str, str]
    says: str


def _rate(metric: str, *by: str, labels: str = _MODEL) -> str:
    return f"sum by ({', '.join(by)}) (rate(ray_racer_{metric}{{{labels}}}{_WINDOW}))"


def _share(part: str, whole: str, by: str) -> str:
    return f"{_rate(part, 'model', by)} / {_rate(whole, 'model', by)}"


def _quantile(share: float, metric: str) -> str:
    buckets = f"sum by (le, model) (rate(ray_racer_{metric}_bucket{{{_MODEL}}}{_WINDOW}))"
    return f"histogram_quantile({share}, {buckets})"


def _mean(metric: str) -> str:
    return f"{_rate(metric + '_sum', 'model')} / {_rate(metric + '_count', 'model')}"


def _or_zero(query: str, other: str) -> str:
    """``query``, and 0 where only ``other`` has been counted yet."""
    return f"({query}) or ({other}) * 0"


PANELS = [
    Panel("Requests", "reqps", {"{{model}} {{outcome}}": _rate("requests_total", "model", "outcome")}, "By outcome."),
    Panel(
        "Tokens",
        "none",
        {
            "{{model}} delivered": _rate("completion_tokens_total", "model"),
            "{{model}} of prompts": _rate("prompt_tokens_total", "model"),
        },
        "Tokens a second.",
    ),
    Panel(
        "Time to first token",
        "s",
        {
            "{{model}} p50": _quantile(0.5, "time_to_first_token_s"),
            "{{model}} p95": _quantile(0.95, "time_to_first_token_s"),
        },
        "Waiting and prefill.",
    ),
    Panel(
        "Time a token",
        "s",
        {"{{model}} p50": _quantile(0.5, "time_per_token_s"), "{{model}} p95": _quantile(0.95, "time_per_token_s")},
        "After the first one.",
    ),
    Panel("Time of a request", "s", {"{{model}} p95": _quantile(0.95, "request_s")}, "From arrival to the end."),
    Panel(
        "Requests and sequences",
        "none",
        {
            "{{model}} open": f"sum by (model) (ray_racer_open_requests{{{_MODEL}}})",
            "{{model}} running": f"sum by (model) (ray_racer_running_sequences{{{_MODEL}}})",
            "{{model}} waiting": f"sum by (model) (ray_racer_waiting_sequences{{{_MODEL}}})",
        },
        "Waiting grows where replicas are too few.",
    ),
    Panel("Mean accepted tokens", "none", {"{{model}}": _mean("mat")}, "Tokens a step; plain decoding is 1."),
    Panel(
        "Acceptance by source",
        "percentunit",
        {"{{model}} {{source}}": _share("accepted_tokens_total", "drafted_tokens_total", "source")},
        "Part of the draft nodes verified that were accepted.",
    ),
    Panel(
        "Acceptance by depth",
        "percentunit",
        {"{{model}} {{depth}}": _share("accepted_by_depth_total", "drafted_by_depth_total", "depth")},
        "How far drafts foresee.",
    ),
    Panel("Draft budget", "none", {"{{model}}": _mean("budget")}, "Nodes verified a request and step, root included."),
    Panel(
        "Time of a step",
        "ms",
        {"{{model}} mean": _mean("step_ms"), "{{model}} p95": _quantile(0.95, "step_ms")},
        "One forward over all running sequences.",
    ),
    Panel(
        "Part of a step spent drafting",
        "percentunit",
        {"{{model}}": f"{_rate('draft_ms_total', 'model')} / {_rate('step_total_ms_total', 'model')}"},
        "Time the model waits for drafts.",
    ),
    Panel("Steps", "none", {"{{model}}": _rate("steps_total", "model")}, "A second, over all replicas."),
    Panel(
        "Cache in use",
        "percentunit",
        {"{{model}} fullest replica": f"max by (model) (ray_racer_cache_use{{{_MODEL}}})"},
        "Of the key-value cache; when full, requests wait or are preempted.",
    ),
    Panel(
        "Store: contexts asked",
        "none",
        {"{{result}}": _rate("store_contexts_total", "result")},
        "A second, by result: late and failed cost drafts, never answers.",
    ),
    Panel(
        "Store: tokens written",
        "none",
        {
            "learned": _rate("store_learned_tokens_total", "model"),
            "dropped": _or_zero(
                _rate("store_dropped_tokens_total", "model"), _rate("store_learned_tokens_total", "model")
            ),
        },
        "A second; dropped where the store is slower than what is said.",
    ),
    Panel(
        "Store: breaker",
        "none",
        {"{{model}} worst replica": f"max by (model) (ray_racer_store_breaker{{{_MODEL}}})"},
        "1 while lookups do not reach the store.",
    ),
    Panel(
        "Replicas",
        "none",
        {
            "{{deployment}} healthy": "sum by (deployment) (ray_serve_deployment_replica_healthy)",
            "{{deployment}} wanted": "sum by (deployment) (ray_serve_autoscaling_target_replicas)",
        },
        "Wanted ones that are missing wait for a node, or do not start.",
    ),
]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it; the data source is chosen in it."""
    return {
        "uid": "racer-serve",
        "title": "racer-serve",
        "tags": ["racer-serve"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "model",
                    "type": "query",
                    "label": "Model",
                    "datasource": {"type": "prometheus", "uid": "$datasource"},
                    "query": "label_values(ray_racer_open_requests, model)",
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                },
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 24 // _WIDTH)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": query, "legendFormat": name}
            for i, (name, query) in enumerate(panel.queries.items())
        ],
    }
