"""Whether a strategy's five steps (steps.py) are those of one process, and by how much they differ."""

import torch

# Largest errors, relative to the greatest value (of all gradients; of each parameter). They allow for sums in another
# order; test_tensor_parallel.py shows that a defect exceeds them 10 times at least.
TOLERANCE = {
    "float64": {"loss": 1e-13, "gradients": 1e-13, "parameters": 1e-11},
    "float32": {"loss": 1e-5, "gradients": 1e-5, "parameters": 5e-4},
}


def worst(found, expected, scale=None):
    """The largest error over all tensors, relative to `scale`, or to the greatest value of each tensor."""
    assert found.keys() == expected.keys()
    return max(
        ((found[name] - tensor).abs().max() / (scale or tensor.abs().max())).item() for name, tensor in expected.items()
    )


def gradient_error(found, expected):
    """The largest error of the gradients of a measurement, relative to the greatest of all gradients.

    A gradient may be 0 but for rounding (a key's bias has that), so its own greatest value is no scale.
    """
    greatest = max(tensor.abs().max() for tensor in expected["gradients"].values())
    return worst(found["gradients"], expected["gradients"], greatest)


def assert_same_steps(found, expected, dtype):
    """Loss, norm and gradients of the first step, the parameters after the last, and the evaluation are as expected."""
    allowed = TOLERANCE[dtype]
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=allowed["loss"], atol=0)
    torch.testing.assert_close(found["norm"], expected["norm"], rtol=10 * allowed["loss"], atol=0)
    assert gradient_error(found, expected) <= allowed["gradients"]
    assert worst(found["parameters"], expected["parameters"]) <= allowed["parameters"]
    assert_same_evaluation(found, expected, dtype)


def assert_same_evaluation(found, expected, dtype):
    """The validation loss is that expected, and no logit depends on a later character."""
    allowed = TOLERANCE[dtype]
    assert abs(found["validation"] / expected["validation"] - 1) <= allowed["parameters"]
    assert found["earlier logits"] <= allowed["loss"] < found["later logits"]
