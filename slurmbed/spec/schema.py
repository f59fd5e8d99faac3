"""The JSON schema of a configuration file, for editors. Pure."""

from typing import Any

from slurmbed.spec.model import ClusterSpec

AS_WRITTEN: dict[str, dict[str, Any]] = {
    "memory": {"type": ["string", "integer"], "description": "MiB, or text like 2G"},
    "gres": {"type": "string", "pattern": "^gpu:([A-Za-z0-9_.:-]+:)?[0-9]+$", "description": "gpu:8, gpu:h100:8, ..."},
}
"""Keys that are text in the file and become another value when it is read."""


def schema() -> dict[str, Any]:
    """The schema that a file which slurmbed takes satisfies."""
    made = ClusterSpec.model_json_schema(by_alias=True)
    group = made["$defs"]["NodeGroup"]["properties"]
    group |= AS_WRITTEN
    for name, each in made["$defs"].items():
        for key, written in each["properties"].items():
            if name == "Limits" or key.endswith("_time"):  # YAML reads 30 as a number
                written["anyOf"] = [{"type": ["string", "integer"]}]
    made["$defs"].pop("Gpus")
    made["properties"]["users"].pop("default")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "slurmbed cluster",
        **without_null(made),
    }


def without_null(value: Any) -> Any:
    """Without titles made from names, and without null: in a file a key that is not set is left out."""
    if isinstance(value, list):
        return [without_null(each) for each in value if each != {"type": "null"}]
    if not isinstance(value, dict):
        return value
    if "properties" in value:  # names of keys, which may be those of the schema's own
        value = {**value, "properties": {key: without_null(each) for key, each in value["properties"].items()}}
    found = {key: each if key == "properties" else without_null(each) for key, each in value.items()}
    for key in ("title", "default"):
        if key == "title" or found.get(key) is None or isinstance(found[key], dict):
            found.pop(key, None)
    several = found.pop("anyOf", [])
    return {**several[0], **found} if len(several) == 1 else {**found, **({"anyOf": several} if several else {})}
