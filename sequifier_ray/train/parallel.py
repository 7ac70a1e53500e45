"""The one place that knows DDP and FSDP: prepare, accumulate, clip, reduce.

Every strategy offers the same surface, so that the update step reads alike for one process and for many.
Process groups are made by the launcher before; a world of one needs none.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from sequifier_ray.config.train import TrainConfig
from sequifier_ray.model.initialization import initial_tensor, initialize
from sequifier_ray.model.network import SequenceModel


@dataclass(frozen=True)
class Strategy:
    """One process: the surface that all strategies share."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    layer_autocast: bool = False
    torch_compile: str = "none"
    cpu_offload: bool = False
    collective_timeout_s: float = 600.0

    name = "none"

    def prepare(self, build: Callable[[], SequenceModel], seed: int) -> nn.Module:
        """A model with the weights that ``seed`` gives, ready to train on this rank's device."""
        model = build()
        initialize(model, seed)
        model = model.to(self.device)
        self._compile_blocks(model)
        return self._compile_whole(model)

    def accumulate(self, model: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
        """Around one forward and backward pass: exchange gradients only in the last one."""
        return contextlib.nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 arithmetic over float32 parameters where the config asks for it."""
        if not self.layer_autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def clip_gradients(self, model: nn.Module, max_norm: float | None) -> Tensor:
        """The global L2 norm of the gradients () before they are scaled down to ``max_norm``, if given."""
        parameters = [p for p in model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if max_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """The sum of every rank's ``values``, computed in host memory (gloo): no device is waited for."""
        values = values.cpu()
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def start_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """Begin to sum every rank's ``values`` in host memory; the answer waits for the sum and gives it."""
        if self.world_size == 1:
            return lambda: values
        work = dist.all_reduce(values, async_op=True)

        def finish() -> Tensor:
            assert work is not None
            work.wait()
            return values

        return finish

    def gather_objects(self, value: Any, group: Any = None) -> list[Any]:
        """Every rank's small picklable ``value``, in the order of ranks. Over ``group``, or that of the
        training."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group)
        return gathered

    def from_lead(self, value: Any, group: Any = None) -> Any:
        """Rank 0's small picklable ``value``: decisions are taken once. Over ``group``, or that of the
        training."""
        if self.world_size == 1:
            return value
        box = [value]
        # By way of host memory: the saver's group has no other.
        dist.broadcast_object_list(box, src=0, group=group, device=torch.device("cpu"))
        return box[0]

    def own_host_group(self) -> Any:
        """A gloo group of all ranks for a thread beside the training; None for a world of one."""
        if self.world_size == 1:
            return None
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.collective_timeout_s))

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.sum_over_ranks(torch.zeros(1))

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The module whose parameter names are those of the plain model."""
        return model

    def _compile_blocks(self, model: SequenceModel) -> None:
        if self.torch_compile == "inner":
            for block in model.blocks:
                block.compile()

    def _compile_whole(self, model: nn.Module) -> nn.Module:
        # In place, so that parameter names stay those of the plain model.
        if self.torch_compile == "outer":
            model.compile()
        return model


class DataParallel(Strategy):
    """Every rank holds all parameters; gradients are averaged (DDP)."""

    name = "ddp"

    def prepare(self, build: Callable[[], SequenceModel], seed: int) -> nn.Module:
        model = build()
        initialize(model, seed)
        model = model.to(self.device)
        device_ids = [self.device] if self.device.type == "cuda" else None
        # Equal weights follow from the seed, so nothing is broadcast at the start. The option's successor,
        # which a warning names, does not switch that off.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        ddp = DistributedDataParallel(
            model,
            device_ids=device_ids,
            init_sync=False,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
        return self._compile_whole(ddp)

    def accumulate(self, model: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
        assert isinstance(model, DistributedDataParallel)
        return contextlib.nullcontext() if is_last else model.no_sync()

    def unwrap(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, DistributedDataParallel)
        module: nn.Module = model.module
        return module


class ShardedParallel(Strategy):
    """Every rank holds its shard of parameters, gradients and optimizer state (FSDP, ``fully_shard``)."""

    name = "fsdp"

    def prepare(self, build: Callable[[], SequenceModel], seed: int) -> nn.Module:
        with torch.device("meta"):
            model = build()
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        precision = MixedPrecisionPolicy()
        if self.layer_autocast:
            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        offload = OffloadPolicy()
        if self.cpu_offload:
            offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        self._compile_blocks(model)
        # Predictions are views and nobody changes them in place; the warning about that is for others.
        warnings.filterwarnings("ignore", message=".*returned a view tensor", category=UserWarning)
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=offload)
        home = torch.device("cpu") if self.cpu_offload else self.device
        model.to_empty(device=home)
        # One full parameter at a time: each rank works out the same values and keeps its own part.
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor)
            full = initial_tensor(model, name, seed).to(home)
            shard = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
            with torch.no_grad():
                parameter.to_local().copy_(shard.to_local())
        model.reset_buffers(self.device)
        return model

    def accumulate(self, model: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        # The precision policy casts at the borders of each block.
        return contextlib.nullcontext()


def choose_strategy(config: TrainConfig, device: torch.device, rank: int, world_size: int) -> Strategy:
    """The strategy that the config asks for; a world of one process needs none."""
    settings = config.global_training
    kinds: dict[str | None, type[Strategy]] = {None: Strategy, "ddp": DataParallel, "fsdp": ShardedParallel}
    kind = kinds[settings.data_parallelism] if world_size > 1 else Strategy
    return kind(
        device=device,
        rank=rank,
        world_size=world_size,
        layer_autocast=settings.layer_autocast,
        torch_compile=settings.torch_compile,
        collective_timeout_s=settings.collective_timeout_s,
        cpu_offload=bool(settings.fsdp_cpu_offload) and kind is ShardedParallel,
    )
