"""The command container-image."""

import os
import sys

from imagestore.errors import Refused

USAGE = """\
container-image pull IMAGE                            bring it into your store; print its folder there
container-image list                                  images and kept containers (NODE/NAME) in your store
container-image remove NAME...                        remove them, by NAME or the ID of an image
container-image save IMAGE FILE.sqsh                  write it into one file
container-image save --pid PID [--start FOLDER] FILE.sqsh
                                                      write what the container of that process has now; FOLDER: of the
                                                      image in the store that says how it starts
container-image bundle IMAGE FOLDER                   make an OCI bundle for `srun --container=FOLDER`

IMAGE: [docker://][HOST[:PORT]/]NAME[:TAG|@sha256:...], HOST#NAME, docker-archive:FILE, oci:FOLDER[:TAG] or FILE.sqsh
"""


def main(arguments):
    """Runs it; returns the exit status."""
    os.umask(0o022)
    try:
        return dispatch(arguments)
    except Refused as error:
        message = str(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror or error}"
    except KeyboardInterrupt:
        return 130
    print("container-image:", message.replace("\n", " "), file=sys.stderr)
    return 1


def dispatch(arguments):
    match arguments:
        case ["pull", image]:
            from imagestore.pull import pull

            print(pull(image))
        case ["list"]:
            from imagestore import stock, store

            print(stock.table(stock.rows(store.Store(store.place()).path)), end="")
        case ["remove", _, *_]:
            from imagestore import stock, store

            stock.remove(store.place(), arguments[1:])
        case ["save", "--pid", pid, "--start", start, file]:
            save_running(pid, start, file)
        case ["save", "--pid", pid, file]:
            save_running(pid, None, file)
        case ["save", image, file]:
            save(image, file)
        case ["bundle", image, folder]:
            from imagestore import bundle
            from imagestore.pull import pull

            bundle.write(pull(image), folder)
        case ["--help" | "-h"]:
            print(USAGE, end="")
        case _:
            print(USAGE, end="", file=sys.stderr)
            return 2
    return 0


def save(image, file):
    from imagestore import squash, store
    from imagestore.pull import pull

    folder = pull(image)
    squash.write(store.layers_of(folder), store.start_config(folder), file)


def save_running(pid, start, file):
    from imagestore import squash, store

    if not pid.isdigit():
        raise Refused(f"{pid!r} is no process")
    nothing = {"Env": [], "Entrypoint": [], "Cmd": [], "WorkingDir": "", "User": ""}
    config = store.start_config(start) if start else nothing
    squash.write([f"/proc/{pid}/root"], config, file, skip=squash.mounted_in(pid))
