"""Runs a transformers model over packed rows, with a key-value cache of our own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from racer.cache.pool import KVPool, LayerShape
from racer.errors import ConfigError, UnsupportedModelError
from racer.model.attention import ShapeProbe, stepping
from racer.model.compiled import compile_layers, many_versions, undo
from racer.model.graphs import PaddedStep, StepGraphs, cuda_recorder
from racer.model.layout import Segment, StepLayout
from racer.model.native import load_kernels
from racer.model.packed import pack_linears, siblings
from racer.model.replay import WATCHED_ROWS, NotRepeatableError
from racer.patience import told_if_slow

_log = logging.getLogger(__name__)

DEFAULT_CPU_CACHE_BYTES = 1 << 30
CUDA_CACHE_SHARE = 0.8
_MOST_ROWS = 48
"""Rows of the largest step that is tried when layers have been compiled."""
_NEAR = 0.02
"""How far logits of two ways to compute the same may be apart, relative to the largest: rounding in bfloat16."""
MIN_PLACES = 64
"""Tokens that the smallest cache holds; the start-up check needs them."""


class ModelRunner:
    """One model and its cache.

    The model must have been loaded with ``attn_implementation="racer"``; its bfloat16 linear layers are packed for the
    processor, in place. ``cache_bytes`` caps the pool; None takes 1 GiB on cpu and 80% of the free memory on cuda.
    ``compile``: on a processor let torch's compiler make code of the layers, where it can (``compiled`` says whether it
    did); on a GPU play steps from CUDA graphs (``graphs``, None where that does not work).
    ``context_cap``: longest text that it can decode as the model would, None if only the model's own limit counts.

    Raises UnsupportedModelError if the model's layers cannot all be served by our attention.
    """

    def __init__(self, model: PreTrainedModel, cache_bytes: int | None = None, *, compile: bool = False) -> None:
        self.model = model
        self.dtype: torch.dtype = model.dtype
        self.device = torch.device(model.device)
        undo(model)  # another runner of this model has compiled its layers: a probe must see them as they are written
        with siblings(model) as groups:
            probe = _probe(model)
        pack_linears(model, groups)
        shapes = _shapes(probe)
        self.context_cap = _context_cap(model, probe.windows)
        per_place = KVPool.bytes_per_place(shapes, self.dtype)
        self.pool = self._allocate(shapes, _places(cache_bytes, per_place, self.device), per_place)
        self.vocab_size: int = self.model.config.get_text_config().vocab_size
        on_processor = self.dtype == torch.bfloat16 and self.device.type == "cpu"
        self._by_kernels = on_processor and probe.plain and kernels_attend(shapes)
        self.graphs: StepGraphs | None = None
        on_gpu = self.device.type == "cuda"
        self.compiled = compile and not on_gpu and self._compile(probe.modules.values())
        if compile and on_gpu:
            self.graphs = self._checked_graphs()

    def _allocate(self, shapes: list[LayerShape], places: int, bytes_per_place: int) -> KVPool:
        try:
            return KVPool(shapes, places, self.dtype, self.device)
        except RuntimeError as error:  # torch's out-of-memory errors
            raise ConfigError(
                f"a key-value cache of {places * bytes_per_place} bytes cannot be had on {self.device}; "
                "set cache_bytes lower"
            ) from error

    def _compile(self, attention: Iterable[nn.Module]) -> bool:
        """Make code for one row and for several; False, and the layers as they were, where that does not work."""
        layers = compile_layers(self.model, attention)
        if not layers:
            return False
        try:
            with (
                told_if_slow(_log, "compiling the model's layers, once per machine (some 20 seconds)"),
                many_versions(),
            ):
                for rows in (WATCHED_ROWS, 1):
                    self._run_chain(rows)
                expected = self._samples()
            for layer in layers:
                layer.replays = True
            if not all(map(torch.equal, self._samples(), expected)):
                raise NotRepeatableError("their code gives other results when it is called directly")
        except Exception as error:  # of the compiler's many kinds
            undo(self.model)
            _log.warning("layers run without compilation, which is slower: %s", " ".join(str(error).split())[:300])
            return False
        return True

    @torch.inference_mode()
    def _checked_graphs(self) -> StepGraphs | None:
        """Graphs whose logits are those of the layers as written; None where they differ, or fail."""
        try:
            graphs = StepGraphs(self.pool, self.dtype, self.device, self.run_padded, cuda_recorder(self.device))
            for step in self._trial_steps():
                expected, found = self.run(step), graphs.run(step)
                apart = float("inf") if found is None else float((found - expected).abs().max())
                if not apart <= _NEAR * float(expected.abs().max()):
                    raise NotRepeatableError(f"their logits differ by {apart:.3g} from those of the layers as written")
        except Exception as error:  # of the driver's many kinds
            _log.warning("steps run without CUDA graphs, which is slower: %s", " ".join(str(error).split())[:300])
            return None
        return graphs

    def _trial_steps(self) -> list[list[Segment]]:
        """A text in pieces, single tokens, two texts at once, a tree of three branches beside a single token."""
        tree = Segment(self._chain(7, 9).tokens, np.array([-1, 0, 0, 1, 1, 2, 5], np.int32), start=0, cached=9)
        other, single = replace(self._chain(6), start=32, scored_from=0), replace(self._chain(1, 6), start=32)
        return [[self._chain(5)], [self._chain(4, 5)], [self._chain(1, 9)], [self._chain(1, 9), other], [tree, single]]

    def _chain(self, rows: int, cached: int = 0) -> Segment:
        """A chain of different tokens, behind the first ``cached`` of the same chain; its last row is scored."""
        tokens = (np.arange(cached, cached + rows) * 7 + 3) % self.vocab_size
        chain = np.arange(-1, rows - 1, dtype=np.int32)
        return Segment(tokens.astype(np.int32), chain, start=0, cached=cached, scored_from=rows - 1)

    def _run_chain(self, rows: int, cached: int = 0) -> Tensor:
        return self.run([self._chain(rows, cached)])

    def _samples(self) -> list[Tensor]:
        """Steps of many rows, of few, of one behind others."""
        most = _MOST_ROWS
        return [self._run_chain(most), self._run_chain(2, most - 2), self._run_chain(1, most), self._run_chain(19)]

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment]) -> Tensor:
        """One forward over all segments; writes their keys and values behind each sequence's verified tokens.

        Returns the logits of the scored rows, segment by segment, ``[rows, vocab]`` in the model's dtype.
        """
        played = self._played(segments)
        if played is not None:
            return played
        layout = StepLayout(segments, self.pool, self.dtype, self.device, by_kernels=self._by_kernels)
        with stepping(layout):
            output = self.model(
                input_ids=layout.input_ids,
                position_ids=layout.positions,
                use_cache=False,
                logits_to_keep=layout.scored,
            )
        logits: Tensor = output.logits[0]
        return logits

    def _played(self, segments: Sequence[Segment]) -> Tensor | None:
        """The step's logits from a graph; None where there is none for it. Without graphs from a failure on."""
        if self.graphs is None:
            return None
        try:
            return self.graphs.run(segments)
        except Exception as error:  # of the driver's many kinds; what was written to the cache is written again
            _log.warning("steps run without CUDA graphs from now on: %s", " ".join(str(error).split())[:300])
            self.graphs = None
            return None

    @property
    def timed_fairly(self) -> bool:
        """The latest step took what such steps take: nothing was recorded for it."""
        return self.graphs is None or not self.graphs.recorded

    def run_padded(self, step: PaddedStep) -> Tensor:
        """Logits of all rows of a padded step, ``[rows, vocab]``: what a graph records."""
        with stepping(step):
            tokens, positions = step.begin()
            output = self.model(input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=0)
        logits: Tensor = output.logits[0]
        return logits

    def copy_places(self, sources: Sequence[NDArray[np.int64]], targets: Sequence[NDArray[np.int64]]) -> None:
        """Copy cache places ``sources`` to ``targets`` (int64 ``[n]``, one array a sequence) in all layers."""
        if sum(map(len, sources)):
            source, target = (torch.from_numpy(np.concatenate(part)).to(self.device) for part in (sources, targets))
            self.pool.copy_places(source, target)


def kernels_attend(shapes: Iterable[LayerShape]) -> bool:
    """The kernels run here and can attend with heads of these sizes."""
    dims = {dim for shape in shapes for dim in (shape.key_dim, shape.value_dim)}
    return all(dim % 32 == 0 and dim <= 256 for dim in dims) and load_kernels()


def _places(cache_bytes: int | None, bytes_per_place: int, device: torch.device) -> int:
    if cache_bytes is None:
        cache_bytes = DEFAULT_CPU_CACHE_BYTES
        if device.type == "cuda":
            cache_bytes = int(torch.cuda.mem_get_info(device)[0] * CUDA_CACHE_SHARE)
    if cache_bytes < bytes_per_place * MIN_PLACES:
        raise ConfigError(
            f"cache_bytes={cache_bytes} holds fewer than {MIN_PLACES} tokens of this model; give it at least "
            f"{bytes_per_place * MIN_PLACES}, better {bytes_per_place * 4096} (4096 tokens)"
        )
    return cache_bytes // bytes_per_place


def layer_shapes(model: PreTrainedModel) -> list[LayerShape]:
    """Shapes of the keys and values that ``model`` keeps; it may be one without weights, on torch's device "meta".

    Raises UnsupportedModelError if its layers cannot all be served by our attention.
    """
    return _shapes(_probe(model))


def _shapes(probe: ShapeProbe) -> list[LayerShape]:
    return [LayerShape(*shape) for shape in probe.layers.values()]


@torch.inference_mode()
def _probe(model: PreTrainedModel) -> ShapeProbe:
    """Shapes and windows of the layers' keys and values, as a forward over a few tokens shows them."""
    probe = ShapeProbe()
    tokens = torch.zeros(1, 4, dtype=torch.long, device=model.device)
    positions = torch.arange(4, device=model.device)[None]
    kind = model.config.model_type
    try:
        with stepping(probe):
            model(input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=1)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"model type {kind!r} cannot be verified with drafts: {error}") from None
    except Exception as error:
        raise UnsupportedModelError(
            f"model type {kind!r} cannot be verified with drafts: its forward does not take packed rows ({error})"
        ) from error
    layers = model.config.get_text_config().num_hidden_layers
    missing = [layer for layer in range(layers) if layer not in probe.layers]
    if missing:
        raise UnsupportedModelError(
            f"model type {kind!r} cannot be verified with drafts: {len(missing)} of its {layers} layers do not use "
            f"transformers' attention interface (recurrent and linear attention never do: they keep state that a "
            f"rejected draft cannot be taken out of); choose a model with plain attention"
        )
    return probe


def _context_cap(model: PreTrainedModel, windows: dict[int, int | None]) -> int | None:
    """Context up to which our attention equals the model's: its windows must reach us, and chunks never do."""
    config = model.config.get_text_config()
    caps = []
    for layer, kind in enumerate(getattr(config, "layer_types", None) or []):
        if kind == "chunked_attention":
            caps.append(config.attention_chunk_size)
        elif kind == "sliding_attention" and windows.get(layer) is None:
            caps.append(config.sliding_window)
    return min(caps, default=None)
