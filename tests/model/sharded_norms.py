"""One of two processes that share a model by FSDP2: prints the norms of its layers, reduced over both, as JSON.

python sharded_norms.py <rank> <file for the meeting>
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from model_with_gradients import model_with_gradients
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pipelines.model.diagnostics.layer_norms import layer_norms


def reduce(values: Tensor, how: str) -> Tensor:
    dist.all_reduce(values, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[how])
    return values


def main(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    whole = model_with_gradients()
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    mesh = init_device_mesh("cpu", (2,))
    for block in whole.h:
        fully_shard(block, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    for name, parameter in whole.named_parameters():
        # The gradient of the whole model, cut as its parameter is.
        parameter.grad = torch.distributed.tensor.distribute_tensor(gradients[name], mesh, parameter.placements)
    norms = layer_norms(whole, reduce)
    if rank == 0:
        print(json.dumps(norms))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
