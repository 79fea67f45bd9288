"""EAGLE speculative decoding for quantised GGUF models: the same text, sooner."""
