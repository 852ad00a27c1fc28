"""What users would run instead, as makers for ranks.Ranks: training steps and moves of a training state."""
import functools
import os
import shutil
import time

import models


def _timed_steps(step):
    import torch.distributed as dist

    def work(count):
        seconds = []
        for _ in range(count):
            dist.barrier()
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        return seconds
    return work


def make_trainer(system, model_name, world, **adamw):
    """step(inputs, targets) -> loss of this rank before the update, as a tensor. AdamW, fused, fp32.

    `system`: "compute" (no communication: the limit), "fsdp2" or "deepspeed" (ZeRO-3); `adamw`: beside the lr.
    """
    import torch
    model = models.build(model_name)
    if system == "deepspeed":
        import logging

        import deepspeed
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # Or it would compile, for a minute and with what Debian's python3 does not bring, an operator that only
        # inference calls.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # Without a threshold small parameters would stay whole; clipping is 1.0 by default, off here as elsewhere.
        config = {"train_micro_batch_size_per_gpu": models.ROWS[model_name], "gradient_clipping": 0.0,
                  "zero_allow_untested_optimizer": True, "steps_per_print": 10**9,
                  "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True,
                                        "stage3_param_persistence_threshold": 0}}
        optimizer = torch.optim.AdamW(model.parameters(), lr=models.LR, fused=True, **adamw)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

        def step(inputs, targets):
            loss = engine(inputs, targets)
            engine.backward(loss)
            engine.step()
            return loss.detach()
        return step
    if system == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (world,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=models.LR, fused=True, **adamw)

    def step(inputs, targets):
        loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()
    return step


def make_step(system, model_name, rank, world):
    step, batch = make_trainer(system, model_name, world), models.batch(model_name, rank)
    return _timed_steps(lambda: step(*batch))


def step_maker(system, model_name):
    return functools.partial(make_step, system, model_name)


# A Llama of 97.5 M parameters; with both moments 1.17 GB.
MOVED = dict(vocab_size=8192, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
             num_key_value_heads=12, max_position_embeddings=512, tie_word_embeddings=False)


def moved_shapes(with_moments):
    hidden, inner = MOVED["hidden_size"], MOVED["intermediate_size"]
    shapes = {"embed": (MOVED["vocab_size"], hidden), "head": (MOVED["vocab_size"], hidden), "norm": (hidden,)}
    for i in range(MOVED["num_hidden_layers"]):
        shapes.update({f"{i}.{n}": (hidden, hidden) for n in "qkvo"})
        shapes.update({f"{i}.gate": (inner, hidden), f"{i}.up": (inner, hidden), f"{i}.down": (hidden, inner),
                       f"{i}.norm1": (hidden,), f"{i}.norm2": (hidden,)})
    kinds = ("", ".exp_avg", ".exp_avg_sq") if with_moments else ("",)
    return {name + kind: shape for name, shape in shapes.items() for kind in kinds}


def make_dcp(rank, world):
    """torch.distributed.checkpoint through /dev/shm between two rank sets: save on one, load on the other.

    An argument is (source ranks, target ranks, with moments, folder); both sides' buffers are there beforehand.
    Returns the seconds between two barriers over all ranks, and whether what arrived is what was sent.
    """
    import warnings

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard
    warnings.filterwarnings("ignore")
    groups, states = {}, {}

    def value(name):
        return float(sum(name.encode()) % 97)

    def state(ranks, side, with_moments):
        key = (ranks, side, with_moments)
        if key not in states and rank in ranks:
            shapes = moved_shapes(with_moments)
            mesh = DeviceMesh.from_group(groups[ranks], "cpu")
            result = {}
            for name, shape in shapes.items():
                rows = [len(part) for part in torch.arange(shape[0]).chunk(len(ranks))] + [0] * len(ranks)
                local = torch.full((rows[ranks.index(rank)], *shape[1:]), value(name) if side == "from" else -1.0)
                stride = (shape[1], 1) if len(shape) == 2 else (1,)
                result[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape),
                                                  stride=stride)
            states[key] = result
        return states.get(key)

    def work(argument):
        source, target, with_moments, folder = argument
        for ranks in (source, target):
            if ranks not in groups:
                groups[ranks] = dist.new_group(list(ranks))
        sent, received = state(source, "from", with_moments), state(target, "to", with_moments)
        if received is not None:
            for tensor in received.values():
                tensor.to_local().fill_(-1.0)
        dist.barrier()
        start = time.perf_counter()
        if sent is not None:
            dcp.save(sent, checkpoint_id=folder, process_group=groups[source])
        dist.barrier()
        if received is not None:
            dcp.load(received, checkpoint_id=folder, process_group=groups[target])
        dist.barrier()
        seconds = time.perf_counter() - start
        whole = received is None or all(bool((t.to_local() == value(n)).all()) for n, t in received.items())
        if rank == 0:
            shutil.rmtree(folder)
        return seconds, whole
    return work
