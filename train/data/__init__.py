"""Data: from source text to token shards to batches.  Nothing here imports torch.

Two calls are all that training needs; the steps in between are told in :mod:`train.data.prepare`:

    dataset = prepare(config)                                      # once; later calls return at once
    sequences = PackedSequences(dataset.split("train"), sequence_length=1024, seed=0)
    batch = sequences.batch(first_sequence=step * 32, batch_size=32)
"""
