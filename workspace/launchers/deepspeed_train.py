"""ZeRO stage 1 by DeepSpeed: every rank has the whole model, and its share only of what the optimizer remembers.

Each rank trains a small network twice, on the same batches: by DeepSpeed, with zero1.json, and alone and unsharded.
Ends with 1, and the reason, unless the losses are equal and fall, and the ranks' shares of AdamW's moments, one after
another, are the unsharded ones. Source: Rajbhandari et al. 2020, ZeRO, https://arxiv.org/abs/1910.02054, section 5.1.

    sbatch launchers/deepspeed-srun.sbatch
    sbatch launchers/deepspeed-ssh.sbatch launchers/deepspeed_train.py --steps 50

Legend: B batch, P parameters of the network, R ranks.
"""

import argparse
import copy
import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from ranks import environment, rendezvous

TOLERANCE = 1e-4  # relative; float32, summed in another order
MOMENTS = ("exp_avg", "exp_avg_sq")


class WrongNumber(Exception):
    """The sharded run is not the unsharded one."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--config", default=Path(__file__).with_name("zero1.json"), help="of DeepSpeed")
    parser.add_argument("--timeout", type=int, default=60, help="seconds to wait for another rank")
    options = parser.parse_args()
    try:
        env = environment.read()
        record = env.record(f"the whole model, part {env.rank} of {env.world_size} of the optimizer's state")
        environment.announce(record)
        with rendezvous.process_group(env, "auto", options.timeout) as device:
            summary = prove(json.loads(Path(options.config).read_text()), device, options.steps)
    except (ValueError, WrongNumber) as error:
        sys.exit(f"deepspeed_train.py: error: {error}")
    if env.rank == 0:
        print(json.dumps({"record": "zero1", **summary}), flush=True)


def prove(config, device, steps):
    """Train both ways and compare; returns what rank 0 says. WrongNumber if they differ."""
    torch.manual_seed(1337)
    whole = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).to(device)
    network = copy.deepcopy(whole)
    # DeepSpeed compiles its ops when they are first used, and compute nodes may have no compiler. So zero1.json asks
    # for torch's own AdamW, and what sums over shared memory on CPUs, for inference, is said not to be compatible.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # The ranks are connected, and DeepSpeed takes their group as it is.
    engine, *_ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config=config)
    hyperparameters = {name: config["optimizer"]["params"][name] for name in ("lr", "weight_decay")}
    unsharded = torch.optim.AdamW(whole.parameters(), **hyperparameters)
    limit = config["gradient_clipping"]  # DeepSpeed's own default is 1.0 as well, not none
    share = engine.train_micro_batch_size_per_gpu()
    losses = []
    for step in range(1, steps + 1):
        inputs = torch.randn(share * dist.get_world_size(), 16, device=device)  # [B, 16], the same on each rank
        targets = inputs[:, :4]
        mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
        losses.append(sharded_step(engine, inputs[mine], targets[mine]))
        agree(f"loss of step {step}", losses[-1], unsharded_step(whole, unsharded, inputs, targets, limit))
    if not losses[-1] < losses[0]:
        raise WrongNumber(f"the loss does not fall: {losses[0]:.4f} at step 1, {losses[-1]:.4f} at step {steps}")
    return {
        "world_size": dist.get_world_size(),
        "stage": engine.zero_optimization_stage(),
        "losses": losses,
        "parameters": sum(parameter.numel() for parameter in whole.parameters()),
        "state_of_each_rank": compare_state(engine.optimizer.optimizer, unsharded),
    }


def sharded_step(engine, inputs, targets):
    """A step by DeepSpeed on this rank's share [B/R, 16] of the batch; returns the loss of the whole batch."""
    loss = torch.nn.functional.mse_loss(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def unsharded_step(model, optimizer, inputs, targets, limit):
    """The same step on the whole batch [B, 16], its gradient's norm held to `limit`."""
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return loss.item()


def compare_state(sharded, unsharded):
    """WrongNumber unless the ranks' shares are the unsharded state; returns how many numbers of it each rank has.

    A share is P/R of each moment, rounded up: DeepSpeed fills up the last rank's.
    """
    for name in MOMENTS:
        mine = torch.cat([state[name].flatten() for state in sharded.state.values()])  # [about P/R]
        whole = torch.cat([state[name].flatten() for state in unsharded.state.values()])  # [P]
        shares = [share.to(whole.device) for share in rendezvous.gather(mine)]
        sizes = [share.numel() for share in shares]
        if len(set(sizes)) != 1 or not 0 <= sum(sizes) - whole.numel() < 4 * len(sizes):
            raise WrongNumber(
                f"{name} has {whole.numel()} numbers, and the ranks hold {sizes}: that is not a partition"
            )
        agree(name, torch.cat(shares)[: whole.numel()], whole)
    return len(MOMENTS) * sizes[0]


def agree(what, sharded, unsharded):
    """WrongNumber unless the two are equal to rounding."""
    sharded, unsharded = torch.as_tensor(sharded), torch.as_tensor(unsharded)
    difference = (sharded - unsharded).abs().max() / unsharded.abs().max()
    if not difference < TOLERANCE:
        raise WrongNumber(f"{what}: sharded and unsharded differ by {difference:.1e}, relatively; allowed: {TOLERANCE}")


if __name__ == "__main__":
    main()
