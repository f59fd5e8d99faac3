"""The lesson on tensor parallelism names every file that its code is made of, and they are few."""

import ast
import re

from harness.lessons import PAGE, WORKSPACE, read

MOST = 8


def imported(file: str) -> set[str]:
    """The workspace's files that a file imports at its top, with those of their packages that have code."""
    found = set()
    for node in ast.parse((WORKSPACE / file).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        for name in names:
            path = name.replace(".", "/")
            package = f"{path.partition('/')[0]}/__init__.py"
            found |= {each for each in (f"{path}.py", f"{path}/__init__.py", package) if (WORKSPACE / each).is_file()}
    return {each for each in found if len(ast.parse((WORKSPACE / each).read_text()).body) > 1}  # than a docstring


def closure(files: set[str]) -> set[str]:
    """The files, what they import, and so on."""
    missing = set().union(*map(imported, files)) - files
    return closure(files | missing) if missing else files


def test_the_lesson_on_tensor_parallelism_names_all_files_that_its_code_is_made_of():
    (lesson,) = (each for each in read(PAGE.read_text()) if each.title.startswith("6. "))
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", lesson.text.partition("\n**Read** ")[2]))
    # The loop's own imports, of files, signals and texts, are not about tensor parallelism: it counts as one file.
    assert named == {"train.py"} | closure({"gpt/model.py", "parallel/none.py", "parallel/tp.py"})
    assert len(named) <= MOST


def test_imports_are_followed():
    assert closure({"ranks/communication.py"}) == {"ranks/communication.py"}, "only where --all-reduce socket connects"
    assert closure({"parallel/tp_dtensor.py"}) >= {"gpt/fast.py", "parallel/dtensors.py", "parallel/tp_layers.py"}
