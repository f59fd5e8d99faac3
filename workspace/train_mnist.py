"""Train a convolutional network on MNIST, data parallel, by torch's own tools: DataLoader, DistributedSampler and
DistributedDataParallel.

    python3 train_mnist.py --help
    torchrun --nproc-per-node=2 train_mnist.py
    sbatch jobs/mnist.sbatch --epochs 3

Every rank runs the same loop on its own images; what rank 0 alone does stands under `is_rank_0`.
"""

import dataclasses
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from mnist import checkpoint, data
from mnist import config as configuration
from mnist.batches import loaders
from mnist.journal import DigitsJournal
from mnist.model import DTYPES, AmpError, build, choose_amp
from ranks import communication, environment, rendezvous
from run import earlier


def main():
    try:
        config, env = configuration.parse(), environment.read()
        if config.batch_size % env.world_size:
            raise ValueError(f"--batch-size {config.batch_size} is not a multiple of the {env.world_size} ranks")
        # Several ranks do not fetch data: all would at once, and compute nodes often have no internet.
        digits = data.load(config.data) if config.data or env.world_size > 1 else data.prepare()
        if config.batch_size > len(digits.labels("train")):
            raise ValueError(f"--batch-size {config.batch_size} is more than the {len(digits.labels('train'))} images")
        resumed, passed_over = None, []
        # A job that was queued again has come further than the checkpoint that it was told to begin with.
        own = env.restarts and any(config.run_path().glob("epoch-*.pt"))
        if own or (config.resume == "auto" and not environment.begins(env, config)):
            resumed, passed_over = checkpoint.newest(config.run_path(), config, digits)
        elif config.resume not in ("", "auto"):
            resumed = checkpoint.load(Path(config.resume), config, digits)
    except ValueError as error:
        sys.exit(f"train_mnist.py: error: {error}")
    record = env.record(f"{config.batch_size // env.world_size} of the {config.batch_size} images of a batch")
    environment.announce(record)
    if env.rank == 0:
        print("".join(f"passed over: {each}\n" for each in passed_over), end="", flush=True)
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        with rendezvous.process_group(env, config.backend, config.timeout) as device:
            Run(config, env, device, digits, resumed, record).run()
    except AmpError as error:
        sys.exit(f"train_mnist.py: error: {error}")


class Run:
    """The state of a training run on one rank."""

    def __init__(self, config, env, device, digits, resumed, record):
        self.config, self.device, self.digits = config, device, digits
        self.world_size, self.is_rank_0 = env.world_size, env.rank == 0  # the rank that writes
        self.amp = choose_amp(config.amp, device.type, (config.batch_size // env.world_size, config.eval_batch_size))
        self.first_epoch = resumed["epoch"] if resumed else 0
        self.folder = config.run_path()
        if self.is_rank_0 and environment.begins(env, config):
            earlier.set_aside(self.folder)
        agree = {"data": digits.sha256(), "config": dataclasses.asdict(config), "first epoch": self.first_epoch}
        ranks = rendezvous.gather({"record": record, "amp": self.amp, **agree})
        for each in ranks:
            for name in (*agree, "amp"):
                if each[name] != ranks[0][name]:
                    raise RuntimeError(f"ranks disagree on the {name}: {ranks[0][name]} and {each[name]}")
        self.placement = [each["record"] for each in ranks]
        self.train_loader, self.test_loader = loaders(digits, config, env.rank, env.world_size, device)
        self.steps = config.epochs * len(self.train_loader)
        self.make_model(resumed)
        self.folder.mkdir(parents=True, exist_ok=True)
        first_step = self.first_epoch * len(self.train_loader)
        self.journal = DigitsJournal(self.folder, config, self.is_rank_0, first_step, self.steps, device)

    def make_model(self, resumed):
        config = self.config
        # Channels last: convolutions on a CPU take half the time, and half precision on a GPU wants it.
        self.network = build(config.seed).to(self.device, memory_format=torch.channels_last)
        parameters = self.network.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, config.lr, total_steps=self.steps, pct_start=config.warmup
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.amp == "fp16")
        for name, part in self.parts().items() if resumed else ():
            part.load_state_dict(resumed[name])
        self.model = DistributedDataParallel(self.network)

    def parts(self):
        """What a checkpoint holds the state of."""
        optimizer = {"optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}
        return {"model": self.network, **optimizer}

    def run(self):
        if self.is_rank_0:
            checkpoint.drop_after(self.folder, self.first_epoch)
            self.say_what_runs()
        tested = None
        for epoch in range(self.first_epoch + 1, self.config.epochs + 1):
            tested = self.epoch(epoch)
            if self.is_rank_0:
                checkpoint.save(self.folder, epoch, self.config, self.digits, **self.parts())
        tested = tested or self.test()  # a run that is resumed at its end only says once more how good it is
        if self.is_rank_0:
            self.finish(**tested)

    def epoch(self, epoch):
        """Train on every image once; returns what `test` says of the result."""
        self.train_loader.sampler.set_epoch(epoch)  # without it every epoch would have the order of the first
        for step, (images, labels) in enumerate(self.train_loader, start=1 + (epoch - 1) * len(self.train_loader)):
            start = time.perf_counter()
            loss = self.train(images, labels)
            self.journal.stepped(loss, len(labels), time.perf_counter() - start)
            if step == epoch * len(self.train_loader):
                tested = self.test()
                self.journal.log(step, epoch, tested)
            elif step % self.config.log_every == 0:
                self.journal.log(step, epoch)
        return tested

    def train(self, images, labels):
        """One optimizer step on this rank's part of a batch; returns the mean loss over it.

        DistributedDataParallel averages the gradients of the ranks, whose parts have one size: it is the gradient of
        the mean over the batch.
        """
        loss = F.cross_entropy(self.logits(self.model, images), labels.to(self.device))
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.item()

    def logits(self, model, images):
        images = images.to(self.device, memory_format=torch.channels_last)
        with torch.autocast(self.device.type, DTYPES[self.amp], enabled=self.amp != "off"):
            return model(images).float()

    @torch.no_grad()
    def test(self):
        """Mean loss and accuracy over all images of the test set, on every rank."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)  # loss, right ones, images
        for images, labels in self.test_loader:
            # Not the wrapped model: ranks may have different numbers of batches here, and it would talk in each.
            logits, labels = self.logits(self.network, images), labels.to(self.device)
            loss, right = F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) == labels).sum()
            sums += torch.stack((loss.double(), right.double(), torch.tensor(len(labels), device=self.device).double()))
        loss, right, count = communication.all_reduce(sums, "metrics").tolist()
        assert count == len(self.test_loader.dataset), (count, len(self.test_loader.dataset))
        return {"test_loss": loss / count, "test_accuracy": right / count}

    def say_what_runs(self):
        digits, config = self.digits.record(), self.config
        left_out = digits["train"] % config.batch_size
        print(
            f"{digits['name']}: {digits['train']:,} images to train on, {digits['test']:,} to test, "
            f"from {digits['source']}\n"
            f"{self.world_size} rank(s) of {torch.get_num_threads()} thread(s) on {self.device.type}, amp {self.amp}, "
            f"seed {config.seed}; an epoch: {len(self.train_loader)} steps, {left_out} images left out",
            flush=True,
        )
        if self.first_epoch:
            print(f"resumed after epoch {self.first_epoch}", flush=True)

    def finish(self, test_loss, test_accuracy):
        """The summary, by rank 0."""
        self.journal.summarise(
            config=dataclasses.asdict(self.config),
            data=self.digits.record(),
            torch=torch.__version__,
            parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            world_size=self.world_size,
            threads=torch.get_num_threads(),
            placement=self.placement,
            device=self.device.type,
            amp=self.amp,
            epochs=self.config.epochs,
            steps=self.steps,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            **self.journal.figures(),
        )
        print(f"test accuracy {test_accuracy:.2%}; written to {self.folder}", flush=True)


if __name__ == "__main__":
    main()
