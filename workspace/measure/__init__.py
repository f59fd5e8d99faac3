"""Programs that measure: collectives, a pipeline's bubble."""
