# What the ranks need around them, in one place: run_script.sh sources it. Uncomment what your cluster wants.
# module purge && module load python cuda
# source "$HOME/venv/bin/activate"

# Lines come when they are printed, not when a buffer is full: a job that is killed would lose its last ones.
export PYTHONUNBUFFERED=1
# Each rank would start a thread for every core that it sees; with 8 ranks on a node they fight.
export OMP_NUM_THREADS=1
# Where a node has several networks, the fast one by name (see `ip -brief address`); a wrong guess hangs or is slow.
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
# NCCL says what it takes for the network; look here first when a job is slow. INFO says more.
export NCCL_DEBUG=WARN
