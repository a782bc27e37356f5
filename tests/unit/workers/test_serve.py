"""What a worker answers where a job of its fails for want of memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearhint_daemon.workers import serve
from nearhint_proto.v1 import worker_pb2 as pb

TOO_MUCH = 1 << 46
"""More bytes than a machine lets a process have."""


@pytest.mark.parametrize("library", [np, torch])
def test_a_host_without_memory_is_told_whoever_asked_it(library: object) -> None:
    def measure_hint(request: pb.WorkerRequest) -> pb.WorkerResponse:
        np.empty(TOO_MUCH, np.uint8) if library is np else torch.empty(TOO_MUCH, dtype=torch.uint8)
        raise AssertionError("there was room")

    asked = pb.WorkerRequest(measure_hint=pb.MeasureHint())
    answer = serve._answer(asked, {"measure_hint": measure_hint})
    assert answer.error.code == "OUT_OF_MEMORY"
