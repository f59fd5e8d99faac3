"""What 16 bits can hold, and why the optimizer keeps weights in float32. On a CPU: the formats are the same everywhere.

python3 -m lessons.precision
"""

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
UPDATES = 1000


def main():
    print(f"format    bytes  largest   after 1 comes  1e-8 is   1 after {UPDATES} updates of 0.001")
    for dtype in DTYPES:
        info = torch.finfo(dtype)
        weight, update = torch.ones((), dtype=dtype), torch.tensor(0.001, dtype=dtype)
        for _ in range(UPDATES):
            weight += update  # rounded to the format each time
        name = str(dtype).removeprefix("torch.")
        tiny = torch.tensor(1e-8, dtype=dtype).item()
        print(
            f"{name:<9} {info.bits // 8:>5}  {info.max:<8.1e}  1 + {info.eps:<9.1e}  {tiny:<8.1e}  {weight.item():.4f}"
        )


if __name__ == "__main__":
    main()
