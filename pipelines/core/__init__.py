"""The ground floor: records, storage, shards, manifest, config, executor."""
