# One file, four images: base -> control | db | node. Debian's packages only, so it builds wherever Debian's
# mirrors answer, on amd64 and arm64. No `# syntax=` line: that would pull a frontend from a registry.
ARG SUITE=trixie
ARG FLAVOR=full
ARG TORCH=debian

FROM debian:${SUITE}-slim AS base
LABEL org.slurmbed=image
SHELL ["/bin/bash", "-Eeuo", "pipefail", "-c"]
ENV LANG=C.UTF-8
# Debian's own image deletes downloaded packages; the cache mounts below keep them between builds. The lists in
# them may be another suite's or pruned, so every step updates them. It also leaves out manual pages: a login node has
# them.
RUN rm -f /etc/apt/apt.conf.d/docker-clean /etc/dpkg/dpkg.cfg.d/docker \
 && echo 'APT::Install-Recommends "false";' >/etc/apt/apt.conf.d/slurmbed
# munge's package makes a key when it is installed; removed in the same layer, it never is in an image.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
        munge procps slurm-client slurm-wlm-basic-plugins slurm-wlm-jwt-plugin \
 && rm /etc/munge/munge.key

FROM base AS control-packages
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
        liblua5.4-0 slurmctld slurmdbd slurmrestd slurm-wlm-mysql-plugin \
 && useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin slurmrestd

# What a new cluster starts with, made once here: to make it anew took each cluster seconds.
FROM control-packages AS seed
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
        mariadb-client-core mariadb-server-core \
 && useradd --system --home-dir /var/lib/mysql --shell /usr/sbin/nologin mysql
COPY configs/etc/mysql/ /etc/mysql/
COPY --chmod=755 scripts/seed /usr/local/bin/
RUN seed

FROM control-packages AS control
# For `up --containers`; its volume is the user's nobody.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy docker-registry \
 && install -d -o nobody -g nogroup /var/lib/registry
COPY --from=seed --chown=slurm: /seed/state /var/lib/slurm/slurmctld
RUN sed -i 's/^hosts:.*/hosts: dns files/' /etc/nsswitch.conf # see slurmctld in docker-compose.yml
COPY configs/ /
COPY --chmod=755 scripts/entrypoint scripts/mail-to-file /usr/local/bin/
# What is removed, here and below: a base image made from expired lists of packages (scripts/base-image) has it.
RUN rm -f /etc/apt/apt.conf.d/99mmdebstrap && entrypoint prepare_image
ENTRYPOINT ["entrypoint"]

FROM base AS db
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
        mariadb-client-core mariadb-server-core \
 && useradd --system --home-dir /var/lib/mysql --shell /usr/sbin/nologin mysql \
 && install -d -o mysql /run/mysqld
COPY --from=seed --chown=mysql: /seed/db /var/lib/mysql
COPY configs/ /
COPY --chmod=755 scripts/entrypoint /usr/local/bin/
RUN rm -f /etc/apt/apt.conf.d/99mmdebstrap
ENTRYPOINT ["entrypoint"]

# See the files for what they do and why.
FROM base AS preloaded
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy gcc libc6-dev
COPY scripts/own-cpus.c scripts/without-namespaces.c /
RUN for name in own-cpus without-namespaces; do \
      gcc -shared -fPIC -O2 -Wall -Wextra -Werror -o "/$name.so" "/$name.c"; \
    done

# Slurm's plugin for containers in jobs.
FROM preloaded AS plugin
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy libslurm-dev
COPY scripts/container.h scripts/container.c scripts/container-run.c scripts/container-root.c scripts/container-kept.c /
COPY scripts/container-as-root.c scripts/container-holder.c /
RUN gcc -shared -fPIC -Wl,-Bsymbolic -O2 -Wall -Wextra -Werror -o /container.so \
      /container.c /container-run.c /container-root.c /container-kept.c \
 && gcc -static -O2 -Wall -Wextra -Werror -o /container-holder /container-holder.c \
 && gcc -static -O2 -Wall -Wextra -Werror -o /container-as-root /container-as-root.c /container-root.c

# The flavors of the node, each on the one before it: FLAVORS in slurmbed/cluster/settings.py.
FROM base AS node-slim
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
        openssh-client openssh-server python3-pip python3-venv slurmd \
 && rm /etc/ssh/ssh_host_* # made by the package, like munge's key

# What every login node has, and nodes that build their users' programs.
FROM node-slim AS programs
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
        bash-completion bc bzip2 curl file g++ gcc git iperf3 iproute2 iputils-ping jq less libc6-dev lmod locales make \
        man-db nano python3-dev python3-pytest rsync strace tmux unzip vim wget xz-utils \
 && printf '%s UTF-8\n' de_DE.UTF-8 en_GB.UTF-8 en_US.UTF-8 es_ES.UTF-8 fr_FR.UTF-8 >/etc/locale.gen \
 && locale-gen

# TORCH=debian, the default: CPU; builds everywhere. With the OpenMP flavour of OpenBLAS; on the reference BLAS torch is
# 50 times slower, and the pthread flavour fights with torch's own OpenMP threads.
FROM programs AS torch-debian
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy libopenblas0-openmp python3-torch

# TORCH=pypi: CUDA and NCCL. A company's proxy may sign with its own authority, so the host's CA bundle comes as a
# build secret.
FROM programs AS torch-pypi
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=requirements/torch.lock,target=/torch.lock \
    apt-get update -q; DEBIAN_FRONTEND=noninteractive apt-get install -qy python3-numpy; \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    pip install --break-system-packages --root-user-action=ignore --require-hashes -r /torch.lock

# hadolint ignore=DL3006
FROM torch-${TORCH} AS node-torch
ARG TORCH
COPY --chmod=755 scripts/check-torch /usr/local/bin/
RUN check-torch "$TORCH"

# accelerate, DeepSpeed, Ray and others in a virtual environment over the torch above, and Open MPI. It comes first on
# PATH, so python3 is its python3. Ray's Java, C++ and web interfaces stay out.
FROM node-torch AS node-full
ENV PATH=/opt/launchers/bin:$PATH
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=requirements/launchers.lock,target=/launchers.lock \
    export DEBIAN_FRONTEND=noninteractive; apt-get update -q; \
    apt-get install -qy libopenmpi-dev openmpi-bin pdsh python3-attr python3-mpi4py python3-psutil python3-requests \
        python3-setuptools python3-wheel python3-yaml; \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    python3 -m venv --system-site-packages /opt/launchers; \
    pip install --quiet --no-cache-dir --no-deps --no-build-isolation --require-hashes -r /launchers.lock; \
    sed '1s|.*|#!/opt/launchers/bin/python3|' "$(command -v torchrun)" >/opt/launchers/bin/torchrun; \
    chmod 755 /opt/launchers/bin/torchrun; \
    rm -rf /opt/launchers/lib/python3*/site-packages/ray/cpp \
        /opt/launchers/lib/python3*/site-packages/ray/dashboard/client \
        /opt/launchers/lib/python3*/site-packages/ray/jars; \
    HOME=/tmp python3 -c 'import accelerate, deepspeed, hydra, lightning_fabric, mpi4py, ray, submitit'; rm -rf /tmp/* /tmp/.[a-z]*
# The tests of the training programs, two files at a time.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy python3-pytest-xdist

# hadolint ignore=DL3006
FROM node-${FLAVOR} AS node
COPY --chmod=755 scripts/module-files /usr/local/bin/
RUN if command -v gcc; then module-files && sed -i '1i . /etc/lmod/bash' /etc/bash.bashrc; fi
# What runs containers in jobs. Without the seccomp profile of `up --containers` it may do nothing. sid alone has
# Apptainer. In a PID namespace it would mount another /proc, which the kernel forbids as Docker covers parts of the first
# one. With ranges of user IDs it would call programs that need setuid.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q \
 && export DEBIAN_FRONTEND=noninteractive && apt-get install -qy bubblewrap crun squashfs-tools \
 && if apt-cache show apptainer >/dev/null 2>&1; then \
      apt-get install -qy apptainer && apptainer config global --set 'allow pid ns' no && rm /etc/sub[gu]id; \
    fi
COPY --from=preloaded /own-cpus.so /without-namespaces.so /usr/local/lib/
COPY --from=plugin /container.so /usr/local/lib/
COPY --from=plugin /container-holder /container-as-root /usr/local/libexec/
COPY --chmod=755 scripts/containers/ /usr/local/lib/containers/
COPY configs/ /
COPY --chmod=755 scripts/nvidia-smi /usr/local/lib/emulated/
COPY --chmod=755 scripts/entrypoint scripts/job-here scripts/seff scripts/sgather scripts/wait-ready /usr/local/bin/
# Debian has no `python` of its own; programs like slurm-sdk call it.
RUN rm -f /etc/apt/apt.conf.d/99mmdebstrap && ln -s /usr/bin/python3 /usr/local/bin/python \
 && python3 -m compileall -q /usr/local/lib/containers \
 && for name in container-image container-start enroot; do ln -s /usr/local/lib/containers/$name /usr/local/bin/; done \
 && echo 'optional /usr/local/lib/container.so' >/etc/slurm/plugstack.conf.d/container.conf \
 && entrypoint prepare_image
ENTRYPOINT ["entrypoint"]
