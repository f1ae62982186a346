"""One tiny model instance for tests of the physical side."""

from __future__ import annotations

import pytest
import torch

from ninfer.convert import convert
from ninfer.runtime.instance import ModelInstance
from tests.checkpoints import dense_checkpoint, moe_checkpoint


@pytest.fixture(scope="package", params=["dense", "moe"])
def instance(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelInstance:
    root = tmp_path_factory.mktemp(request.param)
    make = dense_checkpoint if request.param == "dense" else moe_checkpoint
    torch.set_num_threads(1)
    convert(make(root / "hf", seed=11).path, root / "model.ninfer", recipe="q8")
    return ModelInstance.open(root / "model.ninfer")
