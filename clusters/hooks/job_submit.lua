-- In slurmctld, for each job: it may change a job, refuse it, and tell the user why.
-- https://slurm.schedmd.com/job_submit_plugins.html
function slurm_job_submit(job, partitions, uid)
  if uid == 0 then
    slurm.log_user("root submits no jobs here: become a user")
    return slurm.ERROR
  end
  if job.time_limit == slurm.NO_VAL then
    slurm.log_user("without --time a job has its partition's default, and backfill starts it late")
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
