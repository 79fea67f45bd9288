"""Side by side in one run: plain decoding, drafted decoding, fixed trees, and other programs."""
