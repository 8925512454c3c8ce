"""The decision log: every plan, step and draft position of a run, in Arrow and Parquet (DESIGN section 8)."""
