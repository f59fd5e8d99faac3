"""What a run leaves behind: lines to read, metrics.jsonl to follow and plot, summary.json to keep. Rank 0 writes."""

import json
import time

import torch

from ranks import communication


class Journal:
    """Adds up what happens between two log lines.

    Throughput and the share of communication are of training steps alone; `elapsed_s` includes evaluation and saving.
    """

    def __init__(self, folder, config, write, first_step, carried=(0.0, 0)):
        self.folder, self.metrics = folder, folder / "metrics.jsonl"
        self.config, self.write = config, write
        self.started = time.perf_counter()
        self.total = {"tokens": 0, "train_s": 0.0, "communication_s": 0.0}
        self.losses, self.recent = [], dict(self.total)
        self.carried = carried  # (sum, count) of losses since the last log line, from before this process
        if write:
            self.keep_until(first_step)

    def keep_until(self, step):
        """Drop the lines that a resumed run writes again, all of them if it starts anew."""
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        whole = [line for line in lines if line.endswith("}")]
        temporary = self.folder / ".metrics.jsonl"
        temporary.write_text("".join(f"{line}\n" for line in whole if json.loads(line)["step"] <= step))
        temporary.replace(self.metrics)

    def stepped(self, loss, tokens, train_s, communication_s):
        """Count an optimizer step; a step of 0 seconds has only its loss count."""
        self.losses.append(loss)
        for name, amount in (("tokens", tokens), ("train_s", train_s), ("communication_s", communication_s)):
            self.recent[name] += amount
            self.total[name] += amount

    def pending(self, whole_loss):
        """(sum, count) of the losses since the last log line; `whole_loss` adds up the parts of all ranks."""
        of_process = whole_loss(torch.tensor(self.losses, dtype=torch.float64).sum()).item()
        return self.carried[0] + of_process, self.carried[1] + len(self.losses)

    def log(self, step, val_loss, whole_loss):
        """A line on stdout and one in metrics.jsonl for the steps since the last; returns their mean training loss."""
        total, count = self.pending(whole_loss)
        train_loss = total / count
        counted = self.recent if self.recent["train_s"] else self.total
        rate, share = (counted[name] / (counted["train_s"] or 1) for name in ("tokens", "communication_s"))
        steps = self.config.steps
        if self.write:
            validation = f"val {val_loss:.4f}" if val_loss is not None else " " * 10
            print(
                f"step {step:>{len(str(steps))}}/{steps}  train {train_loss:.4f}  {validation}  "
                f"{rate:>7,.0f} tokens/s  communication {share:3.0%}",
                flush=True,
            )
            line = {
                "step": step,
                "steps": steps,
                "train_loss": train_loss,
                "val_loss": val_loss,
                "tokens_per_s": rate,
                "communication_s": self.recent["communication_s"],
                "train_s": self.total["train_s"],
                "elapsed_s": time.perf_counter() - self.started,
            }
            with self.metrics.open("a") as metrics:
                metrics.write(json.dumps(line) + "\n")
        self.losses, self.recent, self.carried = [], dict.fromkeys(self.recent, 0), (0.0, 0)
        return train_loss

    def last_train_loss(self):
        """The training loss of the last line: of a run that was resumed at its end."""
        return json.loads(self.metrics.read_text().splitlines()[-1])["train_loss"]

    def figures(self):
        """Throughput since this process began: after --resume, of the steps since; 0 if there was none."""
        train_s = self.total["train_s"] or float("inf")
        return {
            "tokens_per_s": self.total["tokens"] / train_s,
            "communication_share": self.total["communication_s"] / train_s,
            "communication_s": self.total["communication_s"],
            "elapsed_s": time.perf_counter() - self.started,
        }

    def summarise(self, **summary):
        """Write summary.json, whole or not at all."""
        temporary = self.folder / ".summary.json"
        temporary.write_text(json.dumps(summary, indent=2) + "\n")
        temporary.replace(self.folder / "summary.json")


def communicated():
    """Seconds in collectives so far, and how many of each kind."""
    communication.settle()
    return sum(communication.seconds.values()), communication.calls.copy()
