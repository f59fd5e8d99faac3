-- slurmdbd by its user's number, without a password. Volumes of older clusters had one with a password.
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;
GRANT ALL ON slurm_acct_db.* TO slurm@localhost;
DROP USER IF EXISTS slurm@'%';
