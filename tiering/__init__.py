"""KV blocks by their content: names, pools, tables, tiers, and how blocks move between them."""
