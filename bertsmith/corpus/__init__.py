"""From files to training instances: documents, shards, pairs, masks. No torch."""
