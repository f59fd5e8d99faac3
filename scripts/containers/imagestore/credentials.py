"""The user's login for a registry: as `docker login` keeps it, or in enroot's file of credentials."""

import base64
import json
import os
import shlex

HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io")


def find(host, user=None):
    """The value of an Authorization header for this registry, or None."""
    keys = (host, f"https://{host}", f"https://{host}/v1/", f"https://{host}/v2/")
    if host == "registry-1.docker.io":
        keys += HUB_KEYS
    login = of_docker(keys, user) or of_enroot(keys, user)
    return f"Basic {login}" if login else None


def of_docker(keys, user):
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    try:
        with open(f"{folder}/config.json") as file:
            logins = json.load(file)["auths"]
        for key in keys:
            login = logins.get(key, {}).get("auth")
            if login and user in (None, base64.b64decode(login).decode().partition(":")[0]):
                return login
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


def of_enroot(keys, user):
    """Lines `machine HOST login USER password WORD`, in which a variable's name stands for its value."""
    folder = os.environ.get("ENROOT_CONFIG_PATH") or os.path.expanduser("~/.config/enroot")
    try:
        with open(f"{folder}/.credentials") as file:
            lines = [shlex.split(line, comments=True) for line in file]
    except (OSError, ValueError):
        return None
    for line in lines:
        fields = dict(zip(line[::2], line[1::2], strict=False))
        name = os.path.expandvars(fields.get("login", ""))
        if fields.get("machine") in keys and user in (None, name):
            word = os.path.expandvars(fields.get("password", ""))
            return base64.b64encode(f"{name}:{word}".encode()).decode()
    return None
