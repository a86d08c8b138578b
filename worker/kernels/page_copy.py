"""Contract of `page_copy`: give some pages the content of others, all layers at once, as they are stored.

pages: [num_pages, page_bytes] uint8, where page_bytes is a multiple of 16 in every KV layout.
sources, targets: [n] int32. Targets are distinct and none of them is a source; so the order is of no matter.
"""
