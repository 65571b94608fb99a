"""What devices, Flower and NVFlare share: names and counts, screening, replies, waiting."""
