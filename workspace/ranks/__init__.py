"""What the ranks of a job share: who they are, how they meet, talk and hold their shards."""
