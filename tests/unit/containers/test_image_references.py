"""What users call an image."""

import pytest
from imagestore.errors import Refused
from imagestore.reference import parse

SERVICE = ("5001", "registry:5000")
SHA = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "host", "name", "tag"),
    [
        ("debian", "registry-1.docker.io", "library/debian", "latest"),
        ("debian:13", "registry-1.docker.io", "library/debian", "13"),
        ("docker://alice/model:v1.2_3", "registry-1.docker.io", "alice/model", "v1.2_3"),
        ("docker.io/debian", "registry-1.docker.io", "library/debian", "latest"),
        ("ghcr.io/some/deep/name", "ghcr.io", "some/deep/name", "latest"),
        ("docker://nvcr.io#nvidia/pytorch:25.01-py3", "nvcr.io", "nvidia/pytorch", "25.01-py3"),
        ("host:8080/name", "host:8080", "name", "latest"),
        ("host:8080#name:1", "host:8080", "name", "1"),
    ],
)
def test_names_in_registries(text, host, name, tag):
    image = parse(text, SERVICE)
    assert (image.host, image.name, image.tag, image.digest, image.plain) == (host, name, tag, None, False)


@pytest.mark.parametrize("name", ["localhost:5001/a/b:1", "127.0.0.1:5001/a/b:1", "docker://localhost:5001#a/b:1"])
def test_the_clusters_own_registry_has_the_name_that_it_has_on_the_host(name):
    image = parse(name, SERVICE)
    assert (image.host, image.name, image.plain) == ("registry:5000", "a/b", True)
    assert parse(name, None).host.endswith(":5001")


@pytest.mark.parametrize(
    ("text", "plain"),
    [("localhost:7/a", True), ("localhost/a", True), ("registry:5000/a", True), ("localhost.org:7/a", False)],
)
def test_only_this_machine_and_the_clusters_registry_are_asked_without_tls(text, plain):
    assert parse(text, SERVICE).plain is plain


def test_a_digest_and_a_user():
    image = parse(f"$oauthtoken@nvcr.io#nvidia/cuda@{SHA}")
    assert (image.user, image.host, image.name, image.digest) == ("$oauthtoken", "nvcr.io", "nvidia/cuda", SHA)
    assert parse(f"debian:13@{SHA}").digest == SHA


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("docker-archive:a.tar", "DockerArchive", "a.tar"),
        ("oci:folder", "Layout", "folder"),
        ("oci:/a/b:1", "Layout", "/a/b"),
        ("oci:/a:b/c", "Layout", "/a:b/c"),
        ("image.sqsh", "Squash", "image.sqsh"),
        ("./image", "Squash", "./image"),
        ("/a/b", "Squash", "/a/b"),
    ],
)
def test_files(text, kind, path):
    image = parse(text)
    assert (type(image).__name__, image.path) == (kind, path)


@pytest.mark.parametrize(
    "text",
    [
        *("", "UPPER/case", "a//b", "a/../b", "-a", "a:", "a:-b", "a:" + "b" * 129, "a" * 256, "a b", "a\nb", "a\0b"),
        *("docker://", "docker-archive:", "oci:", "oci::1", "dockerd://a", "podman://a"),
        *("a@sha256:12", f"a@{SHA.upper()}", "host:0/a", "host:99999/a", "host:x/a", "ho st:1/a", ":1/a", "é/a"),
    ],
)
def test_what_names_no_image_is_refused_in_one_line(text):
    with pytest.raises(Refused) as refused:
        parse(text, SERVICE)
    assert str(refused.value)


@pytest.mark.parametrize("text", ["image.sif", "/shared/image.sif"])
def test_an_image_of_apptainer_is_refused_with_the_way_to_convert_it(text):
    with pytest.raises(Refused, match=f"^{text}: images of Apptainer") as refused:
        parse(text, SERVICE)
    assert f"apptainer build --sandbox FOLDER {text}" in str(refused.value)
