"""The exercises that are checked by a program: the page's answers are right, and the usual wrong ones are not."""

import re

import pytest

from lessons.grade import EXERCISES
from processes import train

PROGRAM = "from lessons import grade; grade.main()"


@pytest.fixture
def graded(workspace, tmp_path):
    """graded(lesson, change) -> exit status and output of rank 0, for the page's answer, changed."""

    def graded(lesson, change=lambda answer: answer, ranks=2):
        page = workspace / "lessons" / f"{lesson}.md"  # a page of its own, or a part of the first
        if page.exists():
            text = page.read_text()
        else:
            first = (workspace / "README.md").read_text()
            text = re.search(rf"^## {lesson}\. (.*?)^## ", first, re.MULTILINE | re.DOTALL)[1]
        answer = re.search(r"<summary>Answer</summary>.*?^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
        given = (workspace / "exercises" / f"{EXERCISES[lesson].__name__}.py").read_text()
        head = re.split(r"^(?:def|class) ", given, maxsplit=1, flags=re.MULTILINE)[0]
        (tmp_path / f"{EXERCISES[lesson].__name__}.py").write_text(head + change(answer))
        ended = train(lesson, "--folder", tmp_path, world_size=ranks, program=PROGRAM)
        return ended[0].code, ended[0].stdout

    return graded


@pytest.mark.parametrize(("lesson", "checks"), [("3", 3), ("4", 7), ("6", 4), ("ring", 4), ("containers", 6)])
def test_the_answer_of_the_page_is_right(graded, lesson, checks):
    code, said = graded(lesson, ranks=3 if lesson == "3" else 2)
    assert f"lesson {lesson}: {checks} of {checks}\n" in said
    assert code == 0


def test_what_is_not_written_yet(workspace):
    for ended in train("4", "--folder", workspace / "exercises", world_size=2, program=PROGRAM):
        assert ended.code == 1
        assert "no sampler yet" in ended.stdout


@pytest.mark.parametrize(
    ("lesson", "right", "wrong", "said"),
    [
        ("3", "    rank, last", "    dist.all_reduce(tensor)\n    rank, last", "AssertionError: dist.all_reduce"),
        ("3", "tensor += below", "tensor.copy_(below)", "not yet  the sum is in the tensor"),
        ("4", "manual_seed(epoch)", "manual_seed(0)", "not yet  the order is another one in the next epoch"),
        ("4", ", generator=torch.Generator().manual_seed(epoch)", "", "not yet  a second call returns the same"),
        ("4", "rank : count - count % world_size : world_size", "rank::world_size", "not yet  all ranks have the same"),
        ("6", "torch.distributed.all_reduce(dy)", "pass", "not yet  backward: the gradient of x"),
        (
            "ring",
            "thread.start()\n        fill(as_bytes(arrived), left)\n        thread.join()",
            "right.sendall(as_bytes(outgoing))\n        fill(as_bytes(arrived), left)",
            "TimeoutError",
        ),
        ("ring", "if turn < ranks - 1", "if turn < 1", "not yet  3 ranks, 7 numbers: the sum"),
        (
            "ring",
            "slices[(rank - turn) % ranks]",
            "slices[(rank + turn) % ranks]",
            "not yet  3 ranks, 7 numbers: the sum",
        ),
        ("ring", "range(2 * (ranks - 1))", "range(2 * ranks)", "not yet  together they send"),
        ("containers", 'startswith(f"{hidden}/")', "startswith(hidden)", "not yet  a whiteout hides /data, but not"),
        (
            "containers",
            ' if not path.rpartition("/")[2].startswith(HIDES)}',
            "}",
            "not yet  a whiteout hides a file",
        ),
        ("6", "super().__init__()", "super().__init__(); self.whole = whole", "not yet  a rank keeps only its shard"),
    ],
)
def test_the_usual_mistakes(graded, lesson, right, wrong, said):
    def mistaken(answer):
        assert right in answer
        return answer.replace(right, wrong)

    code, output = graded(lesson, mistaken)
    assert code == 1
    assert said in output
