"""MNIST, data parallel, as PyTorch's tutorials do it: torchrun, DistributedSampler, DistributedDataParallel.

Source: https://pytorch.org/tutorials/intermediate/ddp_series_multinode.html.
../../train_mnist.py trains the same network, with all that a longer run wants.
"""

import argparse
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mnist import data
from mnist.model import build


def main():
    options = parse()
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=60))
    verify(rank, world_size, local_rank, device)

    digits = data.load()
    train, test = dataset(digits, "train", options.limit), dataset(digits, "test", options.limit)
    if len(train) < world_size:
        sys.exit(f"--limit {options.limit}: {world_size} ranks want an image each")
    sampler = DistributedSampler(train, shuffle=True, drop_last=True)
    train_loader = DataLoader(train, options.batch_size, sampler=sampler)
    # Each test image once: DistributedSampler would give some twice, so that all ranks have as many.
    test_loader = DataLoader(Subset(test, range(rank, len(test), world_size)), options.batch_size)

    model = DistributedDataParallel(build(seed=0).to(device), device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    first_epoch = resume(options.resume, model, optimizer, device) if options.resume else 1
    for epoch in range(first_epoch, options.epochs + 1):
        sampler.set_epoch(epoch)  # without it every epoch would have the order of the first
        loss = train_epoch(model, train_loader, optimizer, device)
        accuracy = evaluate(model, test_loader, device)
        if rank == 0:
            print(f"epoch {epoch}/{options.epochs}: loss {loss:.4f}, test accuracy {accuracy:.2%}", flush=True)
            save(options.checkpoints, epoch, model, optimizer)
    dist.destroy_process_group()
    if first_epoch <= options.epochs and accuracy < options.least_accuracy:
        sys.exit(f"test accuracy {accuracy:.2%} after {options.epochs} epochs, expected {options.least_accuracy:.0%}")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--limit", type=int, help="take only so many images of the training set, and of the test set")
    parser.add_argument("--checkpoints", type=Path, default="checkpoints", help="folder for checkpoint_epoch_N.pt")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--least-accuracy", type=float, default=0.5, help="fail if the last epoch's is lower")
    return parser.parse_args()


def verify(rank, world_size, local_rank, device):
    """Rank 0 says where every rank is, once all have been counted."""
    count = torch.ones(1, device=device)
    dist.all_reduce(count)
    assert count.item() == world_size, (count.item(), world_size)
    places = [None] * world_size
    dist.all_gather_object(places, f"{socket.gethostname()}, local rank {local_rank}, {device}")
    if rank == 0:
        print("".join(f"rank {rank} of {world_size}: {place}\n" for rank, place in enumerate(places)), end="")
        nodes = f"{os.environ['GROUP_WORLD_SIZE']} nodes x {os.environ['LOCAL_WORLD_SIZE']}"
        what = f"{world_size} GPUs" if device.type == "cuda" else f"{world_size} ranks, gloo on CPUs: CUDA finds no GPU"
        print(f"Starting distributed training on {what} ({nodes})", flush=True)


def dataset(digits, part, limit):
    """Images [N, 1, 28, 28] from 0 to 1, and labels [N]."""
    labels = torch.frombuffer(bytearray(digits.labels(part)), dtype=torch.uint8).long()
    images = torch.frombuffer(bytearray(digits.images(part)), dtype=torch.uint8)
    images = images.view(-1, 1, data.SIDE, data.SIDE)  # [N * 784] -> [N, 1, 28, 28]
    return TensorDataset(images[:limit].float() / 255, labels[:limit])


def train_epoch(model, loader, optimizer, device):
    """The mean loss of the epoch, over all ranks."""
    model.train()
    total = torch.zeros(1, device=device)
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # here the gradients of the ranks are averaged
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / len(loader) / dist.get_world_size()


@torch.no_grad()
def evaluate(model, loader, device):
    """The share of test images that are right, over all ranks."""
    model.eval()
    sums = torch.zeros(2, device=device)  # right ones, images
    for images, labels in loader:
        # Not the wrapped model: ranks may have different numbers of batches.
        right = model.module(images.to(device)).argmax(1) == labels.to(device)
        sums += torch.tensor([right.sum(), len(labels)], device=device)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def save(folder, epoch, model, optimizer):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint_epoch_{epoch}.pt"
    partial = path.with_suffix(".partial")  # a job that is killed leaves no half of a checkpoint
    state = {"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, partial)
    partial.rename(path)
    print(f"saved {path}", flush=True)


def resume(path, model, optimizer, device):
    """The epoch to go on with. Every rank reads the file."""
    checkpoint = torch.load(path, map_location=device, weights_only=True)
    model.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    if dist.get_rank() == 0:
        print(f"resumed from {path}, after epoch {checkpoint['epoch']}", flush=True)
    return checkpoint["epoch"] + 1


if __name__ == "__main__":
    main()
