"""Contract of `page_copy`: give some pages the content of others, all layers at once, as they are stored.

pages: [num_pages, page_bytes] uint8, where page_bytes is a multiple of 16 in every KV layout.
sources, targets: [n] int32. Targets are distinct and none of them is a source; so the order is of no matter.

No step launches it today: sequences share whole pages that nobody writes any more, and what follows the last
whole page is computed anew, so nothing is copied on write (`DECISIONS.md` says why). It is for whoever moves
pages inside a pool: a fork in the middle of a page, or pages brought together for a transfer. Until then
`bench/gpu.sh` alone launches it, to compare it on a device.
"""
