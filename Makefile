# Each target is one call: `make up NODES=8` is `slurmbed up --nodes 8`.
# Arguments like TEXT='it is.txt' reach it as they were typed.
quote = '$(subst ','\'',$(1))'
ARGUMENTS = $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(call quote,$(name)=$(value $(name)))))
TARGETS := up train compare mnist bubble grade launchers status shell logs scale down clean purge bench-collectives doctor
DRAWING := train compare bubble bench-collectives
FOR_DEVELOPERS := test test-launchers test-clients test-versions mutate bench bench-train

.PHONY: help $(TARGETS) $(FOR_DEVELOPERS)
help: ## print this
	@sed -n 's/^#: //p' Makefile

#: make train [PARALLEL=tp] [NODES=2]            train a model on the cluster; write a report
#:         [RECIPE=plain|fast] [STEPS=..] [TEXT=file] [CONTAINER=image]
#: make compare [STRATEGIES=none,ddp,tp]         train with one strategy after another; one report
#:         [RECIPE=plain|fast] [STEPS=..] [TEXT=file]
#: make mnist [NODES=2] [EPOCHS=2]              train on MNIST with torchrun, two ranks on each node
#: make bubble [NODES=2]                         measure and draw how long pipeline stages are idle
#: make grade LESSON=3                          check the exercise of a lesson (3, 4, 6, ring, containers)
#: make launchers [ONLY=torchrun,ray]            run every launcher on the running cluster's GPUs; a table
#: make up [NODES=2] [CPUS=..] [MEMORY=2G]       start the cluster and wait until it is ready
#:         [GPUS=8|h100:8]                       GPUs per node; emulated if the host has none
#:         [CONFIG=clusters/campus.yaml]         configuration file instead of the options above
#:         [SLURM=24.11] [FLAVOR=full] [TORCH=debian] [NVIDIA_SMI=1] [CGROUPS=0] [SSH_PORT=..] [WORKSPACE=dir]
#:         [REST=1] [CONTAINERS=1] [RETAIN=1] [ADOPT=1] [TIMELINE=1]
#: make status                                   show nodes and jobs
#: make shell [USER=alice]                       open a shell on the login node
#: make logs [SERVICE=slurmctld] [FOLLOW=1]      show the output of the daemons
#: make scale NODES=8                            add or remove nodes while jobs run
#: make down                                     stop the cluster; keep jobs, accounting, home directories
#: make clean                                    remove the cluster: containers, volumes, network
#: make purge                                    remove the cluster and all images
#: make bench-collectives [LARGEST=67108864]     measure collectives between two nodes; a plot
#: make test [ONLY=smoke]                        lint and all tests; ONLY=smoke: a few, in two minutes
#:         [ONLY=unit|containers|training|newest|cluster]
#: make test-launchers                           the whole matrix of launchers
#: make test-clients                             slurm-sdk, submitit, snakemake and others, from PyPI
#: make test-versions [ONLY=26.05]               the core of the cluster tests with other versions of Slurm
#: make mutate [ONLY=word] [JOBS=2]               insert known mistakes; does a test find each?
#: make bench                                    measure the cluster: ratios within one run
#: make bench-train [SEEDS=3] [TEXT=file]         measure training: tokens/s, seconds to a loss
#: make doctor                                   check this machine
#: All except tests, benchmarks and doctor take NAME=.. for a second cluster.
$(DRAWING): .venv/has-figures
$(TARGETS): .venv/ready
	@exec .venv/bin/slurmbed $@ $(ARGUMENTS)

$(FOR_DEVELOPERS): .venv/ready .venv/has-figures .venv/has-test
	@exec .venv/bin/python -m dev $@ $(ARGUMENTS)

.venv/ready: pyproject.toml scripts/venv
	@scripts/venv

.venv/has-%: pyproject.toml scripts/venv
	@scripts/venv $*
