# The environment of the ranks, in one place: run_script.sh sources it. Uncomment what your cluster needs.
# module purge && module load python cuda
# source "$HOME/venv/bin/activate"

# Lines come when they are printed, not when a buffer is full: a job that is killed would lose its last ones.
export PYTHONUNBUFFERED=1
# Otherwise each rank starts a thread for every core that it sees; 8 ranks on a node would slow each other down.
export OMP_NUM_THREADS=1
# Where a node has several networks, the fast one by name (see `ip -brief address`); a wrong guess hangs or is slow.
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
# NCCL says what it takes for the network; look here first when a job is slow. INFO says more.
export NCCL_DEBUG=WARN
