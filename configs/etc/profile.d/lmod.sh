# shellcheck shell=sh source=/dev/null
if [ "${BASH_VERSION:-}" ]; then . /etc/lmod/bash; fi
