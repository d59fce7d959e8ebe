"""The host side of the CUDA back end as far as it runs without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from infer.backends.cuda_backend import LAST_EPOCH, CudaBackend, most_workers
from infer.backends.cuda_request import PLACES, REQUEST, Outcome
from infer.backends.cuda_source import model_header
from infer.request import Request
from laneformer.errors import LaneformerError
from tests.infer.fake_cuda import Machine
from tests.infer.rounded import Rounded
from tests.tiny_models import RandomWeights, tiny_config


def without_device(*, checksums: bool = False) -> CudaBackend:
    backend = CudaBackend.__new__(CudaBackend)
    backend.config = tiny_config()
    backend.context = backend.config.max_position_embeddings
    backend.kernel = SimpleNamespace(checksums=checksums, workers_per_lane=2)  # type: ignore[assignment]
    backend._arrays = {name: np.ones(16, np.uint8) for name in ("packets", "flags", "control")}
    backend._epoch, backend._running = 0, False
    return backend


def test_a_second_request_is_refused_until_the_first_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = without_device()
    monkeypatch.setattr(backend, "_launched", lambda *_: iter([(7, -1.0), (8, -1.0)]))
    first = backend.decode(Request((1, 2), max_new_tokens=2))
    assert next(first) == (7, -1.0)
    with pytest.raises(LaneformerError, match="answers a request already"):
        next(backend.decode(Request((1, 2), max_new_tokens=2)))
    assert next(first) == (8, -1.0)  # the refused one took nothing from it
    first.close()
    assert next(backend.decode(Request((1, 2), max_new_tokens=2))) == (7, -1.0)


def test_the_device_is_asked_for_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(shared_bytes=200 * 1024).install(monkeypatch)
    backend = CudaBackend(Rounded(RandomWeights(tiny_config())))
    assert "SHARED_BYTES = 204800;" in model_header(backend.config, backend.kernel)


def test_epochs_go_on_and_packets_are_forgotten_where_they_would_wrap() -> None:
    backend = without_device()
    assert [backend._first_epoch(steps) for steps in (10, 3)] == [0, 10 * 7]
    assert backend._arrays["packets"].all() and not backend._arrays["control"].any()
    backend._epoch = LAST_EPOCH - 7
    assert backend._first_epoch(1) == 0
    assert backend._epoch == 7 and not backend._arrays["packets"].any()


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome.STALLED, r"worker 5 \(lane 2\), layer 3, waiting for other lanes: waited too long"),
        (Outcome.TORN, r"worker 5 .* checksum does not fit"),
        (Outcome.NOT_FINITE, "logits are not finite"),
    ],
)
def test_what_ended_a_request_is_told(outcome: Outcome, message: str) -> None:
    backend = without_device()
    status = outcome | 5 << 8 | 3 << 24 | PLACES.index("waiting for other lanes") << 40
    with pytest.raises(LaneformerError, match=message):
        backend._check(status)


def test_the_request_is_packed_as_the_compiler_packs_it() -> None:
    assert REQUEST.itemsize == 22 * 8 + 10 * 4 and REQUEST.itemsize % 8 == 0


def test_workers_have_rows_of_every_output() -> None:
    release = {"hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 16, "num_lanes": 8}
    assert most_workers(tiny_config(**release, intermediate_size=12288), 132) == 16
    assert most_workers(tiny_config(**release, intermediate_size=12288), 128) == 16
    assert most_workers(tiny_config(), 132) == 2  # 32 columns are two tiles
