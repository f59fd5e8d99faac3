"""Train a small GPT on a text: one loop, one evaluation, on one process or, with --parallel, over many.

    python3 train.py --help
    sbatch jobs/tp.sbatch --steps 500

Every rank runs the same loop; what rank 0 alone does stands under `is_rank_0`.
"""

from ranks import signals

if __name__ == "__main__":
    signals.listen()  # before all else: until then a signal of Slurm's ends the process

import dataclasses
import math
import sys
import time
from functools import partial
from pathlib import Path

import torch

import parallel
from gpt import config as configuration
from gpt import data
from gpt.batches import TextData
from gpt.model import build, generate, outline
from gpt.muon import MOMENTUM, Muon
from parallel import breaks
from ranks import communication, environment, rendezvous, timeline
from ranks.sharding import local
from run import checkpoint, earlier, memory
from run.journal import Journal, communicated


def main():
    signals.listen()
    try:
        config = configuration.parse()
        env = environment.read()
        strategy = parallel.load(config.parallel)
        strategy.check(config, env.world_size)
        if config.break_:
            breaks.make(config.break_, config.parallel)
        # Several ranks do not fetch a text: all would at once, and compute nodes often have no internet.
        text = data.load(config.text) if config.text or env.world_size > 1 else data.prepare()
        batches = TextData(text.content, text.symbols, config)
        resumed, passed_over = None, []
        if config.resume and not environment.begins(env, config):
            folder = config.run_path() / "checkpoints"
            # A job that was queued again has come further than the checkpoint that it was told to begin with.
            own = env.restarts and checkpoint.by_step(folder)
            resumed, passed_over = checkpoint.load("auto" if own else config.resume, folder, config, text)
    except ValueError as error:
        sys.exit(f"train.py: error: {error}")
    shard = strategy.shard_description(config, len(text.symbols), env.rank, env.world_size)
    environment.announce(env.record(shard))
    if env.rank == 0:
        print("".join(f"passed over: {each}\n" for each in passed_over), end="", flush=True)
    if config.threads:
        torch.set_num_threads(config.threads)
    communication.configure(config)
    with rendezvous.process_group(env, config.backend, config.timeout) as device:
        try:
            precision(config, device)
            communication.check(device)
        except ValueError as error:
            sys.exit(f"train.py: error: {error}")
        run = Run(config, env, device, strategy, text, batches, resumed, env.record(shard))
        figures = run.run()
    if env.rank == 0:
        run.finish(*figures)  # alone: a sample may take longer than ranks wait for each other


class Trainer:
    """The model and its optimizer on one rank: steps and evaluations. It knows nothing of files and signals."""

    def __init__(self, config, strategy, model, batches, device):
        self.config, self.strategy, self.batches, self.device = config, strategy, batches, device
        self.amp = precision(config, device)
        self.model = strategy.prepare(model, config)
        self.shards = strategy.shards(self.model)
        self.optimizer = make_optimizer(self.shards, config)
        self.held = 0  # bytes, in the last step

    def step(self, step, journal, counts=True):
        """One optimizer step, which `counts` for the throughput; returns how many collectives of each kind it took."""
        start, (waited, calls) = time.perf_counter(), communicated()
        for group in self.optimizer.param_groups:
            group["lr"] = group["highest_lr"] * schedule(step, self.config)
        tokens, targets = self.batches.batch(step)
        loss = self.gradients(tokens.to(self.device), targets.to(self.device))
        norm = self.strategy.gradient_norm(self.model)
        if not math.isfinite(norm.item()):
            raise RuntimeError(
                f"the gradient's norm is {norm.item()} at step {step}: try a lower --lr than {self.config.lr}"
            )
        clip(self.shards, norm, self.config.clip)
        gradients = memory.gradients(self.shards)
        self.optimizer.step()
        self.held = gradients + memory.kept(self.shards, self.optimizer)
        self.optimizer.zero_grad()
        waited_now, calls_now = communicated()
        seconds = time.perf_counter() - start
        journal.stepped(loss.item(), *((tokens.numel(), seconds, waited_now - waited) if counts else (0, 0.0, 0.0)))
        return dict(calls_now - calls)

    def gradients(self, tokens, targets):
        """Make the gradient of the batch's mean loss, by microbatches; returns this rank's part of the loss."""
        count, microbatches = targets.numel(), self.config.accumulate
        mine = self.strategy.local_batch(self.model, tokens, targets)
        pairs = zip(*(each.tensor_split(microbatches) for each in mine), strict=True)
        loss = 0.0
        for number, (tokens, targets) in enumerate(pairs, start=1):
            with self.autocast():
                loss += self.strategy.backward(self.model, tokens, targets, count, last=number == microbatches)
        return loss

    @torch.no_grad()
    def evaluate(self):
        """Mean loss over the whole validation text."""
        total, count = 0.0, 0
        for tokens, targets in self.batches.validation_batches():
            mine = self.strategy.local_batch(self.model, tokens.to(self.device), targets.to(self.device))
            with self.autocast():
                loss = self.strategy.mean_loss(self.model, *mine, targets.numel())
            total += loss.double() * targets.numel()
            count += targets.numel()
        return self.whole_loss(total / count).item()

    def autocast(self):
        """Matrix products in bf16 if --amp says so. Of backward too: in a pipeline it comes between two forwards."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp == "bf16")

    def whole_loss(self, loss):
        return self.strategy.whole_loss(self.model, loss)


class Run(Trainer):
    """A training run on one rank."""

    def __init__(self, config, env, device, strategy, text, batches, resumed, record):
        super().__init__(config, strategy, outline(config, len(text.symbols)), batches, device)
        self.env, self.text, self.resumed = env, text, resumed
        self.is_rank_0 = env.rank == 0  # the rank that writes
        self.interruption = signals.Interruption()
        self.first_step = resumed["step"] if resumed else 0
        if resumed:
            checkpoint.restore(resumed, self.shards, self.optimizer)
        self.folder = config.run_path()
        if self.is_rank_0:
            self.make_folder()
        places = {name: shard.record() for name, shard in self.shards.items()}
        agree = {"text": text.sha256, "config": dataclasses.asdict(config), "first step": self.first_step}
        ranks = rendezvous.gather({"record": record, "shards": places, **agree})
        for each in ranks:
            for name in agree:
                if each[name] != ranks[0][name]:
                    raise RuntimeError(f"ranks disagree on the {name}: {ranks[0][name]} and {each[name]}")
        self.placement, self.shard_map = [each["record"] for each in ranks], [each["shards"] for each in ranks]

    def make_folder(self):
        """The run's folder, without what an earlier run left in it that is not part of this one."""
        if environment.begins(self.env, self.config):
            earlier.set_aside(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        checkpoint.drop_after(self.folder / "checkpoints", self.first_step)
        (self.folder / "summary.json").unlink(missing_ok=True)
        if self.first_step == 0:
            (self.folder / "timeline.json").unlink(missing_ok=True)

    def run(self):
        """Train; returns what `finish` needs."""
        config = self.config
        if self.is_rank_0:
            self.say_what_runs()
        carried = self.resumed["losses"] if self.resumed else (0.0, 0)
        saved, collectives, val_loss = self.resumed and Path(self.resumed["path"]), {}, None
        journal = Journal(self.folder, config, self.is_rank_0, self.first_step, carried)
        for step in range(self.first_step + 1, config.steps + 1):
            self.interruption.ask()
            if step == min(config.profile_step, config.steps - 1):
                collectives = timeline.profile(partial(self.step, step, journal, counts=False), step, self.folder)
            else:
                collectives = self.step(step, journal)
            last = step == config.steps
            val_loss = self.evaluate() if last or step % config.eval_every == 0 else None
            if last or val_loss is not None or step % config.log_every == 0:
                train_loss = journal.log(step, val_loss, self.whole_loss)
            signal = self.interruption.answer()
            if last or signal or step % config.checkpoint_every == 0:
                saved = self.save(step, journal)
            if signal and not last:
                self.leave(signal, step, saved)
        if self.first_step == config.steps:  # interrupted between the last step and the end
            val_loss, train_loss = self.evaluate(), journal.last_train_loss()
        self.memory = rendezvous.gather({"held": self.held, "peak": memory.peak(self.device)})
        return journal, saved, collectives, train_loss, val_loss

    def save(self, step, journal):
        folder, losses = self.folder / "checkpoints", journal.pending(self.whole_loss)
        return checkpoint.save(folder, self.config, self.text, step, losses, self.shards, self.optimizer)

    def leave(self, signal, step, saved):
        """Save was done; requeue if that was asked for, and end."""
        if self.is_rank_0:
            failure = signals.requeue(self.env.job_id) if signal == signals.REQUEUE else ""
            print(f"{signals.NAMES[signal]} at step {step}: saved {saved}{failure and '; ' + failure}", flush=True)
        rendezvous.gather(None)  # together: srun ends the others as soon as one has left
        sys.exit(signals.STATUS[signal])

    def say_what_runs(self):
        text, config = self.text.record(), self.config
        print(
            f"text {text['name']}: {text['characters']:,} characters, {text['symbols']} symbols, "
            f"from {text['source']}\n"
            f"recipe {config.recipe}: {config.layers} layers, {config.heads} heads, {config.channels} channels, "
            f"context {config.block_size}, seed {config.seed}\n"
            f"{config.parallel}: {len(self.placement)} rank(s) of {torch.get_num_threads()} thread(s) "
            f"on {self.device.type}, amp {self.amp}, over {communication.transport_of(self.device)}",
            flush=True,
        )
        if self.first_step:
            changed = checkpoint.changed(self.resumed, config)
            other = f", not as before: {', '.join(changed)}" if changed else ""
            print(f"resumed from {self.resumed['path']} at step {self.first_step}{other}", flush=True)

    def finish(self, journal, saved, collectives, train_loss, val_loss):
        """The sample and the summary, by rank 0."""
        sample = self.sample(saved) if self.config.sample_length else ""
        journal.summarise(
            config=dataclasses.asdict(self.config),
            text=self.text.record(),
            torch=torch.__version__,
            parameters=sum(p.numel() for p in outline(self.config, len(self.text.symbols)).parameters()),
            world_size=len(self.placement),
            threads=torch.get_num_threads(),
            placement=self.placement,
            steps=self.config.steps,
            train_loss=train_loss,
            val_loss=val_loss,
            **journal.figures(),
            collectives_per_step=collectives,
            transports=dict(communication.carried),
            memory=self.memory,
            shards=self.shard_map,
            sample=sample,
        )
        print(memory.described(self.memory))
        if communication.carried:
            each = ", ".join(f"{count:,} by {name}" for name, count in communication.carried.items())
            print(f"collectives of rank 0: {each}")
        print(f"--- sample ---\n{sample}\n--- end of sample ---\nwritten to {self.folder}", flush=True)

    def sample(self, saved):
        """Text by the whole model, put together from all ranks: what the checkpoint holds is what speaks, and it needs
        no L + 1 collectives for every character.
        """
        whole = build(self.config, len(self.text.symbols))
        whole.load_state_dict(checkpoint.whole_parameters(saved))
        start = self.batches.encode("\n" if "\n" in self.text.symbols else self.text.content[0])
        return self.batches.decode(generate(whole, start, self.config.sample_length, self.config.seed)[1:])


def precision(config, device):
    """What --amp comes to on the device, bf16 or off. ValueError if it cannot be had."""
    if config.amp == "bf16" and (device.type, config.dtype) != ("cuda", "float32"):
        raise ValueError(f"--amp bf16 is for float32 on a GPU, and this is {config.dtype} on {device.type}")
    on_gpu = device.type == "cuda" and config.dtype == "float32" and torch.cuda.is_bf16_supported()
    return "bf16" if config.amp == "bf16" or (config.amp == "auto" and on_gpu) else "off"


def make_optimizer(shards, config):
    """Muon for the matrices of the blocks if asked for, AdamW for the rest; it decays matrices only."""
    matrices = {name: shard.parameter for name, shard in shards.items() if shard.parameter.dim() >= 2}
    vectors = [shard.parameter for shard in shards.values() if shard.parameter.dim() < 2]
    by_muon = {name: p for name, p in matrices.items() if config.optimizer == "muon" and name.startswith("blocks.")}
    by_adamw = [p for name, p in matrices.items() if name not in by_muon]
    groups = [
        {"params": by_adamw, "highest_lr": config.lr, "weight_decay": config.weight_decay},
        {"params": vectors, "highest_lr": config.lr, "weight_decay": 0.0},
    ]
    adamw = {"betas": (0.9, config.beta2), "foreach": True}
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, **adamw)
    groups.append(
        {"params": list(by_muon.values()), "names": list(by_muon), "highest_lr": config.muon_lr, "momentum": MOMENTUM}
    )
    copies = next(iter(shards.values())).copies
    return Muon(groups, config.channels // config.heads, copies, **adamw)


def schedule(step, config):
    """The share of the highest learning rate: linear warm-up, then linear or half a cosine down to `final_lr`.

    That would be the share of the step after the last: a step at 0 would change nothing.
    """
    if step <= config.warmup:
        return step / config.warmup
    progress = (step - config.warmup) / (config.steps - config.warmup + 1)
    left = 1 - progress if config.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return config.final_lr + (1 - config.final_lr) * left


@torch.no_grad()
def clip(shards, norm, limit):
    """Scale the gradient down to the norm `limit` if it is above."""
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([local(shard.parameter.grad) for shard in shards.values()], scale)


if __name__ == "__main__":
    main()
