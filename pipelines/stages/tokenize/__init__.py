"""Turn documents into token shards that GPT-2 trainers read."""
