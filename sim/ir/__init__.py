"""The intermediate form of networks and training steps: one graph of stages."""
