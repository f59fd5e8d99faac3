"""What a run of train_mnist.py leaves behind, in the files and the manner of run/journal.py. Rank 0 writes."""

import json
import math
import time

import torch

from ranks.communication import all_reduce
from run.journal import Journal


class DigitsJournal(Journal):
    """Adds up, over all ranks, what happens between two log lines. Throughput is of training steps alone."""

    def __init__(self, folder, config, write, first_step, steps, device):
        super().__init__(folder, config, write, first_step)
        self.steps, self.device = steps, device
        self.recent = dict.fromkeys(("loss", "images", "seconds"), 0)  # of this rank
        self.total = dict.fromkeys(("images", "seconds"), 0)  # of all ranks

    def stepped(self, loss, images, seconds):
        """Count an optimizer step: the mean loss of this rank's images, how many, how long."""
        for name, amount in (("loss", loss * images), ("images", images), ("seconds", seconds)):
            self.recent[name] += amount

    def log(self, step, epoch, tested=None):
        """A line on stdout and one in metrics.jsonl for the steps since the last; every rank must call it."""
        mine = torch.tensor([self.recent["loss"], self.recent["images"]], dtype=torch.float64, device=self.device)
        loss, images = all_reduce(mine, "metrics").tolist()
        if not math.isfinite(loss):
            raise RuntimeError(f"the loss is {loss} at step {step}: try a lower --lr than {self.config.lr}")
        for name, amount in (("images", images), ("seconds", self.recent["seconds"])):
            self.total[name] += amount
        rate = images / self.recent["seconds"]
        self.recent = dict.fromkeys(self.recent, 0)
        if not self.write:
            return
        line = {"step": step, "steps": self.steps, "epoch": epoch, "train_loss": loss / images, "images_per_s": rate}
        line |= tested or {"test_loss": None, "test_accuracy": None}
        line["elapsed_s"] = time.perf_counter() - self.started
        with self.metrics.open("a") as metrics:
            metrics.write(json.dumps(line) + "\n")
        test = f"  test {tested['test_loss']:.4f}  accuracy {tested['test_accuracy']:.2%}" if tested else ""
        print(
            f"epoch {epoch}  step {step:>{len(str(self.steps))}}/{self.steps}  train {loss / images:.4f}  "
            f"{rate:>7,.0f} images/s{test}",
            flush=True,
        )

    def figures(self):
        """Throughput since this process began; none if it did not train."""
        rate = self.total["images"] / self.total["seconds"] if self.total["seconds"] else None
        return {"images_per_s": rate, "elapsed_s": time.perf_counter() - self.started}
