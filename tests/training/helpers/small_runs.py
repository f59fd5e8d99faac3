"""Small runs of train.py: their flags, machines that fail or stop them, and what they leave."""

from processes import metrics
from run import checkpoint

SMALL = ("--layers=2", "--heads=4", "--channels=32", "--block-size=16", "--batch-size=4", "--log-every=1")
# Without what takes four fifths of the time of so small a run: the timeline of a step, and a long sample.
QUICK = (*SMALL, "--profile-step=0", "--sample-length=20")

# train.py on a machine that fails: the rank given ends in the given way at the start of step 13.
FAILS = """
import os, sys, train
step = train.Run.step
def failing(run, number, journal, **options):
    if number == 13 and os.environ.get("RANK", "0") == "{rank}":
        {how}
    return step(run, number, journal, **options)
train.Run.step = failing
train.main()
"""
RAISE, KILL = 'raise RuntimeError("out of luck")', "os.kill(os.getpid(), 9)"

# train.py that gets SIGTERM in the given step, on the last rank: after that step began, so the next is the last.
STOPS = """
import os, signal, train
step = train.Run.step
def stopped(run, number, journal, **options):
    if number == {step} and run.env.rank == run.env.world_size - 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(run, number, journal, **options)
train.Run.step = stopped
train.main()
"""

# train.py whose rank 0 writes no sample before the last rank has ended; FILE tells it.
SAMPLES_LAST = """
import os, time, train
from pathlib import Path
ended, generate = Path({file!r}), train.generate
def alone(*arguments):
    deadline = time.monotonic() + 120
    while not ended.exists():
        assert time.monotonic() < deadline, "the others wait for the sample"
        time.sleep(0.01)
    return generate(*arguments)
train.generate = alone
train.main()
if os.environ["RANK"] != "0":
    ended.touch()
"""

# train.py by tp, which must be given no more than the shapes of a model.
OUTLINED = """
import train
from parallel import tp
prepare = tp.prepare
def outlined(model, *others):
    assert all(parameter.is_meta for parameter in model.parameters()), "the whole model was made before it was cut"
    return prepare(model, *others)
tp.prepare = outlined
train.main()
"""

# train.py on ranks that were started with different flags.
DISAGREES = """
import os, sys, train
sys.argv += ["--seed", os.environ["RANK"]]
train.main()
"""

# train.py as Slurm's job 7, started anew or queued again, in a workspace whose runs/7 is there already.
AS_A_JOB = """
import os, train
from gpt import config
from pathlib import Path
os.environ.update(SLURM_JOB_ID="7", SLURM_RESTART_COUNT="{restarts}")
config.HERE = Path({folder!r})
train.main()
"""


def losses(folder):
    return [(line["step"], line["train_loss"], line["val_loss"]) for line in metrics(folder)]


def newest(folder):
    """The newest checkpoint of a run."""
    return max(folder.glob("checkpoints/*.json"))


def state(folder):
    """What the newest checkpoint of a run holds, put together."""
    return checkpoint.together(checkpoint.read(newest(folder))["parts"])
