"""Muon for the matrices of the blocks, AdamW for the rest.

Muon steps by a matrix whose singular values are all about 1: each direction of a weight learns at the same speed, not
only those in which the gradient is large. Here a matrix is cut into pieces as wide as a head, and each is made
orthogonal by itself: all have one shape, so that one batched product serves them, and tensor parallelism never cuts a
piece over ranks, so that it needs no communication for it. Where rows are cut through pieces, by FSDP, every rank
gathers the matrix, and takes its part of the step. Ranks with the same pieces, under DDP, share the work.

Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.
Legend: N pieces, D channels of a head, C channels.
"""

import torch

from ranks.communication import all_gather
from ranks.sharding import local

# The layers that Muon trains, and the dimension of their weights that is cut into pieces: that of heads or MLP columns.
CUT = {"inward.weight": 0, "outward.weight": 1}
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.8  # 0.95 is usual; in a few hundred steps, a mean over fewer gradients learns sooner


class Muon(torch.optim.AdamW):
    """AdamW whose groups with a `momentum` are stepped by Muon: parameters by name, in "names", of CUT's kinds.

    `pieces` is the width of a piece, D, a divisor of all dimensions that are cut; `copies` the group of ranks that have
    the same parameters and gradients, if there is one.
    """

    def __init__(self, groups, pieces, copies=None, **adamw):
        super().__init__(groups, **adamw)
        self.pieces, self.copies = pieces, copies

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            if group.get("momentum"):
                self.step_muon(group)
        super().step()  # passes over what has no gradient

    def step_muon(self, group):
        parameters = [local(parameter) for parameter in group["params"]]
        gradients = [local(parameter.grad) for parameter in group["params"]]
        laid_out = [parameter.grad for parameter in group["params"]]
        for parameter, gradient in zip(group["params"], gradients, strict=True):
            self.state[parameter].setdefault("momentum", torch.zeros_like(gradient))
            parameter.grad = None
        momenta = [local(self.state[parameter]["momentum"]) for parameter in group["params"]]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov: a look ahead
        dimensions = [CUT[".".join(name.split(".")[-2:])] for name in group["names"]]
        directions = [
            gathered(direction, like, dimension, self.pieces)
            for direction, like, dimension in zip(directions, laid_out, dimensions, strict=True)
        ]
        pieces = [
            direction.movedim(dimension, 0).reshape(-1, self.pieces, direction.shape[1 - dimension])  # [N, D, C]
            for direction, dimension in zip(directions, dimensions, strict=True)
        ]
        steps = shared(torch.cat(pieces), self.copies).split([len(each) for each in pieces])
        for parameter, like, dimension, step in zip(parameters, laid_out, dimensions, steps, strict=True):
            step = step.flatten(0, 1).movedim(0, dimension)
            parameter.sub_(own_part(step, like) if step.shape != parameter.shape else step, alpha=group["lr"])


def gathered(tensor, like, dimension, width):
    """The whole of a tensor that lies over the ranks as the DTensor `like`, which is overwritten, if pieces are cut."""
    if not hasattr(like, "placements"):
        return tensor
    (placement,), ranks = like.placements, like.device_mesh.size()
    if placement.dim == dimension and like.shape[dimension] % (ranks * width) == 0:
        return tensor
    # `like` is this step's gradient, which nobody needs any more: it has the layout that full_tensor gathers from.
    like.to_local().copy_(tensor)
    return like.full_tensor()


def own_part(whole, like):
    """This rank's part of a whole tensor, as `like` is cut: by torch.chunk's rule, so the last may be short."""
    dimension, mesh = like.placements[0].dim, like.device_mesh
    start = -(-whole.shape[dimension] // mesh.size()) * mesh.get_local_rank()
    length = like.to_local().shape[dimension]
    return whole.narrow(dimension, min(start, whole.shape[dimension]), length)


def shared(pieces, copies):
    """Orthogonalise [N, D, C], each rank of `copies`, which all have the same, a share of the N. One all-gather."""
    if copies is None:
        return orthogonalise(pieces)
    shares = pieces.tensor_split(copies.size())
    mine = orthogonalise(shares[copies.rank()])
    return all_gather(mine, [len(share) for share in shares], "optimizer", copies, rounded=True)


def orthogonalise(pieces):
    """[N, D, C], D <= C, to matrices with the same singular vectors and singular values of about 1 (0.7 to 1.2).

    Newton-Schulz: an odd polynomial of the matrix is that polynomial of each singular value; this one drives all of
    them, once below 1, to about 1, by matrix products alone.
    """
    a, b, c = COEFFICIENTS
    x = pieces / (pieces.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT  # [N, D, D]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
