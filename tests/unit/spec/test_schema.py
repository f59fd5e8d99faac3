"""The JSON schema of configuration files, beside a validator that is not ours."""

import jsonschema
import pytest
import yaml

from slurmbed.project import ROOT
from slurmbed.spec.schema import schema

FILES = sorted((ROOT / "clusters").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_takes_the_files_that_come_with_slurmbed(validator, file):
    validator.validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{nodes: [{name: a, cpu: 2}]}", ["nodes", 0]),
        ("{nodes: [{name: a, gres: 'h100:8'}]}", ["nodes", 0, "gres"]),
        ("{nodes: []}", ["nodes"]),
        ("{nodes: [{name: a}], partitions: [{name: p, nodes: [a], preempt_mode: stop}]}", None),
        ("{partitions: []}", []),
        ("{nodes: [{name: a}], users: [{name: carol, sudo: true}]}", ["users", 0]),
        ("{nodes: [{name: a}], users: [{name: carol, uid: 0}]}", ["users", 0, "uid"]),
    ],
)
def test_it_refuses_what_slurmbed_refuses(validator, text, where):
    errors = list(validator.iter_errors(yaml.safe_load(text)))
    assert errors
    if where is not None:
        assert list(errors[0].absolute_path) == where


@pytest.mark.parametrize("memory", ["2G", 2048])
def test_values_are_as_people_write_them(validator, memory):
    group = {"name": "a", "memory": memory, "gres": "gpu:emulated:h100:8"}
    partition = {"name": "p", "nodes": ["a"], "max_time": 30, "default_time": "1:30:00"}
    qos = {"name": "q", "limits": {"MaxJobsPerUser": 1, "MaxTRESPerUser": "gres/gpu=2"}}
    user = {"name": "carol", "uid": 1234, "account": "class", "keys": ["ssh-ed25519 AAAA carol"]}
    validator.validate({"nodes": [group], "partitions": [partition], "qos": [qos], "users": [user]})
