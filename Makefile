# Each target is one call: `make up NODES=8` is `slurmbed up --nodes 8`.
# Words like TEXT='it is.txt' reach it as they were typed.
quote = '$(subst ','\'',$(1))'
WORDS = $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(call quote,$(name)=$(value $(name)))))
TARGETS := up train compare mnist bubble grade launchers status shell logs scale down clean purge bench-collectives doctor
DRAWING := train compare bubble bench-collectives
FOR_DEVELOPERS := test test-launchers test-clients test-versions mutate bench bench-train

.PHONY: help $(TARGETS) $(FOR_DEVELOPERS)
help: ## print this
	@sed -n 's/^#: //p' Makefile

#: make train [PARALLEL=tp] [NODES=2]            from nothing to a model trained on the cluster, and its report
#:         [RECIPE=plain|fast] [STEPS=..] [TEXT=file] [CONTAINER=image]
#: make compare [STRATEGIES=none,ddp,tp]         one strategy after another, and one report of all
#:         [RECIPE=plain|fast] [STEPS=..] [TEXT=file]
#: make mnist [NODES=2] [EPOCHS=2]              digits, by torchrun's ranks on every node
#: make bubble [NODES=2]                         how long a pipeline's stages wait for each other, drawn
#: make grade LESSON=3                          checks the exercise of a lesson (3, 4, 6, ring, containers)
#: make launchers [ONLY=torchrun,ray]            every launcher people use, on the running cluster's GPUs; a table
#: make up [NODES=2] [CPUS=..] [MEMORY=2G]       start the cluster and wait until it is ready
#:         [GPUS=8|h100:8]                       for each node, of the host or else emulated
#:         [CONFIG=clusters/campus.yaml]         or all this, partitions, QOS and accounts from a file
#:         [SLURM=24.11] [FLAVOR=full] [TORCH=debian] [NVIDIA_SMI=1] [CGROUPS=0] [SSH_PORT=..] [WORKSPACE=dir]
#:         [REST=1] [CONTAINERS=1] [RETAIN=1] [ADOPT=1] [TIMELINE=1]
#: make status                                   nodes and jobs
#: make shell [USER=alice]                       a shell on the login node
#: make logs [SERVICE=slurmctld] [FOLLOW=1]      what the daemons say
#: make scale NODES=8                            grow or shrink the running cluster
#: make down                                     stop it; jobs, accounting and homes are kept
#: make clean                                    remove its containers, volumes and network
#: make purge                                    the images too
#: make bench-collectives [LARGEST=67108864]     how fast two nodes talk, beside iperf3's limit; a plot
#: make test [ONLY=smoke]                        lint and all tests; or a few of them in two minutes
#:         [ONLY=unit|containers|training|newest|cluster]
#: make test-launchers                           the whole matrix of launchers
#: make test-clients                             slurm-sdk, submitit, snakemake and others, from PyPI
#: make test-versions [ONLY=26.05]               the core of the cluster tests with other versions of Slurm
#: make mutate [ONLY=word] [JOBS=2]               does a test find each of many mistakes?
#: make bench                                    how fast: ratios measured in one run
#: make bench-train [SEEDS=3] [TEXT=file]         training: tokens/s, seconds to a loss
#: make doctor                                   check this machine
#: All but the tests, benches and doctor take NAME=.. for a cluster beside others; make bench uses its own.
$(DRAWING): .venv/has-figures
$(TARGETS): .venv/ready
	@exec .venv/bin/slurmbed $@ $(WORDS)

$(FOR_DEVELOPERS): .venv/ready .venv/has-figures .venv/has-test
	@exec .venv/bin/python -m dev $@ $(WORDS)

.venv/ready: pyproject.toml scripts/venv
	@scripts/venv

.venv/has-%: pyproject.toml scripts/venv
	@scripts/venv $*
