"""MNIST as tensors, and each rank's share of it in batches.

Legend: N images, B images of this rank in a batch.
"""

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from mnist.data import SIDE

MEAN, DEVIATION = 0.1307, 0.3081  # of the pixels to train on, as shares of 255


class Images(Dataset):
    """`train` or `test` in memory, a batch at a time: (images [B, 1, 28, 28], labels [B])."""

    def __init__(self, digits, part):
        self.images = as_tensor(digits.images(part)).view(-1, 1, SIDE, SIDE)  # [N * 784] -> [N, 1, 28, 28]
        self.labels = as_tensor(digits.labels(part)).long()

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        return (self.images[indices] / 255 - MEAN) / DEVIATION, self.labels[indices]


def as_tensor(content):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def loaders(digits, config, rank, world_size, device):
    """Batches (images [B, 1, 28, 28], labels [B]) of this rank: to train on, and to test.

    To train, all batches of all ranks have one size: of N images N % batch_size are left out, other ones in each epoch.
    Then the ranks' parts of batch k are batch k of one process, however many ranks there are. To test, each image
    counts once, so a rank may have one more than another, and not a copy as DistributedSampler gives.
    """
    train, test = Images(digits, "train"), Images(digits, "test")
    # No worker processes: the images are in memory, and a worker would only copy them.
    common = {"collate_fn": tuple, "pin_memory": device.type == "cuda"}
    share = DistributedSampler(train, num_replicas=world_size, rank=rank, seed=config.seed, drop_last=True)
    mine = range(rank, len(test), world_size)
    return (
        DataLoader(train, config.batch_size // world_size, sampler=share, drop_last=True, **common),
        DataLoader(test, config.eval_batch_size, sampler=mine, **common),
    )
