"""What the pack is worth on this machine: plain loops, processes that share the device, and packs in one table."""
