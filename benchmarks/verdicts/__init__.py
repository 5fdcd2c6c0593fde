"""What verdicts decide, and how often they are wrong, on others' results and by simulation. Seeds are fixed.

    python -m benchmarks.verdicts --data DIR          all tables (a few minutes on two cores)
    python -m benchmarks.verdicts gpt aa --data DIR   some of them

DIR holds public results: `gpt-track3.csv.xz` (validation losses of one GPT, many recipes and seeds),
`tuning-runs.jsonl.xz` (random searches with learning curves), and AlgoPerf's `algoperf-curves.csv.xz` with
`algoperf-v05-targets.json`. Tables whose file is missing are left out, with a line that says so. The test is compared
with what a user would do instead: Welch's t with Holm's correction.
"""
