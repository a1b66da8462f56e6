"""Reports: what people read of a score. Every number is one of score.json, study.json or the ledger."""
