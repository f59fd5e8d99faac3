"""Reading the JSON of Slurm's commands key by key, with errors that name the field and the command."""

import json
from dataclasses import dataclass
from typing import Any

from slurmbed.errors import SlurmbedError
from slurmbed.process import last_lines


@dataclass(frozen=True)
class Fields:
    """An object in the output of ``command``. A path is keys with dots between, like ``state.current``.

    Every method raises SlurmbedError if the field is missing or of another type than asked for.
    """

    content: Any
    command: str

    @classmethod
    def of_output(cls, text: str, command: str) -> "Fields":
        """The whole output of ``command``.

        Raises:
            SlurmbedError: it is no JSON object.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise SlurmbedError(f"the output of {command} is not JSON: {error}", "", last_lines(text, 5)) from None
        return cls(content, command)

    def at(self, path: str) -> Any:
        """The value at ``path``."""
        value = self.content
        for key in path.split("."):
            if not isinstance(value, dict) or key not in value:
                raise self.error(path, "is missing")
            value = value[key]
        return value

    def has(self, key: str) -> bool:
        """Whether the object has that key: newer versions of Slurm have more."""
        return isinstance(self.content, dict) and key in self.content

    def text(self, path: str) -> str:
        value = self.at(path)
        if not isinstance(value, str):
            raise self.error(path, f"is {value!r}, not a text")
        return value

    def texts(self, path: str) -> tuple[str, ...]:
        """A list of texts, like partitions or host names."""
        value = self.at(path)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(path, f"is {value!r}, not a list of texts")
        return tuple(value)

    def flags(self, path: str) -> tuple[str, ...]:
        """As ``texts``, of which there must be one or more: a state and its flags."""
        flags = self.texts(path)
        if not flags:
            raise self.error(path, "is empty")
        return flags

    def number(self, path: str) -> int | None:
        """A whole number, plain or as {"set": true, "infinite": false, "number": 2}; None if not set or infinite."""
        value = self.at(path)
        if isinstance(value, dict):
            if not {"set", "infinite", "number"} <= value.keys():
                raise self.error(path, f"is {value!r}, not a number")
            value = value["number"] if value["set"] and not value["infinite"] else None
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.error(path, f"is {value!r}, not a whole number")
        return value

    def count(self, path: str) -> int:
        """As ``number``, and it must be set."""
        value = self.number(path)
        if value is None:
            raise self.error(path, "is not set")
        return value

    def objects(self, path: str) -> list["Fields"]:
        """A list of objects."""
        value = self.at(path)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(path, f"is {value!r:.200}, not a list of objects")
        return [Fields(item, self.command) for item in value]

    def error(self, path: str, problem: str) -> SlurmbedError:
        hint = "slurmbed reads the JSON of Slurm 24.11 and 26.05; see: scontrol --version"
        return SlurmbedError(f"{self.command}: field {path} {problem}", hint)
