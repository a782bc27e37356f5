"""Collecting: what a model's captures are, and with which sizes each is called; nobody is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from nearhint_rules.program import Program
from nearhint_rules.target import Device
from nearhint_torch.adapter import ControlFlow, aot_inference
from nearhint_torch.capture import capture
from nearhint_torch.devices import device_half
from nearhint_torch.in_place import update_in_place
from nearhint_torch.resampling import compositions
from nearhint_torch.runner import size_reader


@dataclass(frozen=True, slots=True)
class Collected:
    """One captured Program, the sizes of its calls (in the order of its symbols), and where."""

    program: Program
    device: Device
    threads: int
    sizes: tuple[tuple[int, ...], ...]


class Collector:
    """A `torch.compile` backend that captures as `nearhint` does and runs what it captured."""

    def __init__(self, user_names: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        """Why graphs could not be captured."""
        self.captures = self.calls = 0
        """How many there were, and calls of what was captured."""
        self._user_names = user_names
        self._found: dict[str, tuple[Program, Device, dict[tuple[int, ...], None]]] = {}

    def backend(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles a graph of Dynamo's."""
        self.captures += 1
        try:
            return aot_inference(
                module, example_inputs, compiler=self._compile, compositions=compositions()
            )
        except ControlFlow:
            raise
        except Exception as error:
            self._note(error)
            return module.forward

    def collected(self) -> tuple[Collected, ...]:
        """The Programs that were called, in the order of their capture."""
        return tuple(
            Collected(program, device, torch.get_num_threads(), tuple(sizes))
            for program, device, sizes in self._found.values()
            if sizes
        )

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            update_in_place(graph)
            captured = capture(graph, inputs, user_names=self._user_names)
            device = device_half(captured.device)
        except Exception as error:
            self._note(error)
            original: Callable[..., Any] = graph.forward
            return original
        forward: Callable[..., Any] = graph.forward
        program = captured.program
        _, _, seen = self._found.setdefault(program.id, (program, device, {}))
        read = size_reader(captured.bindings)

        def run(*args: Any) -> Any:
            self.calls += 1
            seen[tuple(captured.sizes(read(args)).values())] = None
            return forward(*args)

        return run

    def _note(self, error: Exception) -> None:
        self.problems.append(f"not captured: {type(error).__name__}: {error}"[:300])
