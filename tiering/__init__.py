"""KV blocks by their content: names, pools, tables. Imports nothing else of ours."""
